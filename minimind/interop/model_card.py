"""README.md of an export: what the model is, what it learned from, under which licence, how it is loaded.

Contract: nothing is claimed that isn't known: without a run beside it the data are "not recorded", without evaluation
there are no numbers, and the licence of the weights is "unknown" until somebody says which. Files are named by their
last part only: a card is published, and a path tells of a home directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.errors import UserError
from minimind.base.strict.json_text import read_small
from minimind.config.model import ModelConfig
from minimind.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minimind.config.run import RunConfig

FILE_NAME = "README.md"
MARK = "<!-- Written by minimind-deepspeed; without this line another export leaves the file as it is. -->"
_PLACE = 80  # characters of a name


@dataclass(frozen=True)
class Card:
    """``sources``: data files, None where nobody knows; ``numbers``: what was measured, by name, with its unit;
    ``trained_on_texts``: pretraining here, where each text began with bos."""

    name: str = "minimind"
    licence: str = "unknown"
    base: str | None = None
    sources: tuple[str, ...] | None = None
    trained_on_texts: bool = False
    numbers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_run(cls, config: RunConfig, name: str, **more: Any) -> Card:
        """What the settings of a run say: its files, and what it went on from."""
        base = config.model_name_or_path
        files = [path.name for path in config.train_paths] or ["the built-in corpus of MiniMind on DeepSpeed"]
        return cls(name, base=base.name if base else None, sources=tuple(files), **more)


def may_write(path: Path, mark: str) -> bool:
    """Whether nothing has that name, or a file that still says by ``mark`` that it is ours."""
    if not os.path.lexists(path):
        return True
    try:
        return mark.encode() in read_small(path.parent, path.name)
    except (OSError, ValueError):
        return False


def render(card: Card, config: ModelConfig, dtype: str, tokenizer: Tokenizer | None, adds_bos: bool) -> str:
    """The whole file. ``dtype``: of the weights; ``adds_bos``: whether the exported tokenizer puts it before texts."""
    front = {
        "license": card.licence,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["minimind", "minimind-deepspeed"],
    }
    parts = [
        "---\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in front.items()) + "---",
        MARK,
        f"# {_plain(card.name)}",
        _about(config, dtype),
        "## Data\n\n" + _data(card),
        *(["## Numbers\n\n" + _table(card.numbers)] if card.numbers else []),
        "## Licence\n\n" + _licence(card.licence),
        "## How to load it\n\n" + _usage(tokenizer, adds_bos),
    ]
    return "\n\n".join(parts) + "\n"


def _about(config: ModelConfig, dtype: str) -> str:
    return (
        f"A causal language model of {config.num_parameters():,} parameters, of the {config.model_type} family: "
        f"{config.num_hidden_layers} layers x {config.hidden_size}, {config.num_attention_heads} query and "
        f"{config.num_key_value_heads} key/value heads of {config.head_dim}, SwiGLU {config.intermediate_size}, "
        f"vocabulary {config.vocab_size:,}, {config.max_position_embeddings:,} positions. Weights are {dtype}. "
        "Written by MiniMind on DeepSpeed, a trainer for [MiniMind](https://github.com/jingyaogong/minimind)."
    )


def _data(card: Card) -> str:
    lines = [f"It goes on from `{_plain(card.base)}`."] if card.base else []
    if card.sources is None:
        return "\n\n".join([*lines, "What it was trained on is not recorded beside the weights."])
    return "\n\n".join([*lines, "It was trained on:\n\n" + "\n".join(f"- `{_plain(name)}`" for name in card.sources)])


def _licence(licence: str) -> str:
    if licence == "unknown":
        return (
            "Not stated. Data and first weights have theirs; write the one of these weights into `license:` above "
            "(`minimind export --license NAME` does)."
        )
    return f"The weights: {_plain(licence)}. The data have licences of their own."


def _table(numbers: Mapping[str, str]) -> str:
    return "| | |\n|---|---|\n" + "\n".join(f"| {_plain(name)} | {_plain(value)} |" for name, value in numbers.items())


def _plain(text: str, keep: str = "") -> str:
    """Text of strangers as a few printable characters that are no markup."""
    markup = set("`|<>[]") - set(keep)
    kept = "".join(character for character in text if character.isprintable() and character not in markup)
    return kept[:_PLACE] or "?"


def _usage(tokenizer: Tokenizer | None, adds_bos: bool) -> str:
    if tokenizer is None:
        return f"{_LOAD}```\n\nThe tokenizer is not among these files."
    parts = [_LOAD + (_CHAT if _has_chats(tokenizer) else _TEXT)]
    spelled = "<|bos|>" if tokenizer.is_sentencepiece else tokenizer.decode([tokenizer.bos_id], with_special=True)
    bos = f"`{_plain(spelled, keep='<|>')}`"
    if adds_bos:
        parts.append(
            f"`tokenizer(text)` puts {bos} in front, as each text began in training. A chat that was rendered as text "
            "has it already: tokenize that with `add_special_tokens=False`, as `apply_chat_template` does."
        )
    else:
        parts.append(f"Texts began with {bos} (id {tokenizer.bos_id}) here; this tokenizer adds none: put it in front.")
    return "\n\n".join(parts)


def _has_chats(tokenizer: Tokenizer) -> bool:
    try:
        tokenizer.check_chats()
    except UserError:
        return False
    return True


_LOAD = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
model = AutoModelForCausalLM.from_pretrained("DIRECTORY")
"""
_CHAT = """messages = [{"role": "user", "content": "..."}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
print(tokenizer.decode(model.generate(**ids, max_new_tokens=200)[0]))
```"""
_TEXT = """ids = tokenizer("...", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=200)[0]))
```"""
