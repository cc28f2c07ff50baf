"""Chat templates that behave as those of known models, written here, and a tokenizer that brings one of them.

The literal ones (jingyaogong/minimind, QwenLM's as kept in huggingface/trl, all Apache-2.0) write the same text for the
conversations of these tests: compared by hand, see docs/LOG.md.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from minimind.text.turn import Turn

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
}

_HEAD = """
{%- set system = messages[0].content if messages[0].role == 'system' else DEFAULT %}
{%- if tools %}
    {{- '<|im_start|>system\\n' ~ (system + '\\n\\n' if system is not none else '') ~ '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' ~ (tool | tojson) }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif system is not none %}
    {{- '<|im_start|>system\\n' ~ system ~ '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content, thought = message.content, '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif READS_THOUGHT and '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' -}}
        START
        {%- if THINKS %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{ '\\n' }}{% endif %}
            {%- set call = call.function or call %}
            {{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' ~ (call.arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' -}}
        END
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}PROMPT{% endif %}"""


def _chatml(
    default: str = "none", thinks: str = "false", reads: str = "true", prompt: str = "", marked: bool = False
) -> str:
    text = _HEAD.replace("DEFAULT", default).replace("READS_THOUGHT", reads).replace("THINKS", thinks)
    for name, mark in (("START", "{% generation %}"), ("END", "{% endgeneration %}")):
        text = text.replace(name, mark if marked else "")
    return text.replace("PROMPT", f"{{{{ '{prompt}' }}}}" if prompt else "")


_LATE = "loop.index0 > ns.last and (loop.last or thought)"
TEMPLATES = {
    "thinking": _chatml(thinks="true", prompt="<think>\\n\\n</think>\\n\\n"),  # as MiniMind-3
    "rewriting": _chatml(thinks=_LATE),  # as Qwen3: reasoning of earlier exchanges is left out
    "default": _chatml(default="'You are a helpful assistant.'", reads="false"),  # as Qwen2
    "marked": _chatml(thinks="true", marked=True),  # as TRL's for training
    "bracketed": (  # as Mistral: no generation prompt, roles in pairs
        "{% for message in messages %}{% if message.role == 'user' %}"
        "{% if loop.index0 % 2 %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ '<|im_start|>' + message.content + '<|endoftext|>' }}"
        "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}"
        "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
    ),
}


@cache
def _library() -> str:
    """Bytes and some pieces, with MiniMind-3's added tokens that are and are not special."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = "the fox ran user assistant system tool hello name arguments 你好 世界 because so \n\n  it is\n\n"
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=SPECIAL, initial_alphabet=alphabet)
    library.train_from_iterator([words] * 20, trainer)
    library.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    return str(library.to_str())


def write_tokenizer(directory: Path, template: str | None, **config: Any) -> Path:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(_library())
    (directory / "tokenizer_config.json").write_text(json.dumps({**CONFIG, **config}))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def turns_of(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> list[Turn]:
    """Messages as turns; tools as a turn that is no message."""
    turns = [
        Turn(each["role"], each["content"], message={name: value for name, value in each.items() if name != "role"})
        for each in messages
    ]
    return [Turn("system", "# Tools", message={}, tools=tools), *turns] if tools else turns
