"""Ollama's Modelfile beside a GGUF file: the template of its prompts, where answers end, how tokens are chosen.

Contract: `ollama create NAME -f Modelfile` gives prompts like chat.py's; bos comes from the GGUF file
(``tokenizer.ggml.add_bos_token``). A tokenizer with another chat template has it in the GGUF file, for Ollama to
translate where it knows it: no TEMPLATE is written then. Directives: docs/modelfile.md of ollama/ollama.
"""

from __future__ import annotations

from minimind.base.defaults import CHAT_TEMPERATURE, CHAT_TOP_P
from minimind.config.model import ModelConfig
from minimind.interop.gguf_tokenizer import answer_end, chat_template
from minimind.text.codec import IM_END
from minimind.text.template import JINJA
from minimind.text.tokenizer import Tokenizer

FILE_NAME = "Modelfile"
MARK = "# Written by minimind-deepspeed; without this line another export leaves the file as it is."
_CONTEXT = 4096  # tokens of keys and values that Ollama keeps room for, at most
_TEMPLATE = '''TEMPLATE """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""'''


def modelfile(gguf: str, config: ModelConfig, tokenizer: Tokenizer) -> str:
    """The text for the GGUF file of this name in the same directory."""
    template = chat_template(tokenizer)
    end = IM_END if template == JINJA else tokenizer.decode([answer_end(tokenizer)], with_special=True)
    lines = [
        MARK,
        f"# ollama create NAME -f {FILE_NAME}",
        f"FROM ./{gguf}",
        *([_TEMPLATE] if template == JINJA else []),
        *([f'PARAMETER stop "{end}"'] if end.isprintable() and '"' not in end else []),  # nothing but a string
        f"PARAMETER temperature {CHAT_TEMPERATURE}",
        f"PARAMETER top_p {CHAT_TOP_P}",
        f"PARAMETER num_ctx {min(config.max_position_embeddings, _CONTEXT)}",
    ]
    return "\n".join(lines) + "\n"
