"""Passwords, tokens and keys in what is recorded and shared: masked, by their name or by their form."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

MASK = "***"
_VARIABLES = (
    "WANDB_API_KEY",
    "SWANLAB_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MODELSCOPE_API_TOKEN",
    "MINIMIND_API_KEY",
    "COMET_API_KEY",
    "OPENAI_API_KEY",
)
# The last word of a name: --api-key, wandb.api_key, HF_TOKEN, secretKey; not --tokenizer, max_tokens, monkey
_NAME = re.compile(
    r"(?i:(^|[^a-z])(api[-_]?key|access[-_]?key|secret[-_]?key|key|token|secret|password|passwd|pass|auth"
    r"|authorization|credentials?))$|[a-z](ApiKey|APIKey|Key|Token|Secret|Password)$"
)
_FORMS = re.compile(
    r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|wandb_v1_\w{16,}|ms-[0-9a-f]{8}-[0-9a-f-]{16,}|AKIA[0-9A-Z]{16}|xox[abp]-[\w-]{10,}"
    r"|(?<=Bearer )[^\s\"']+|(?<![0-9A-Za-z/])[0-9a-f]{40}(?![0-9A-Za-z])"
)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def names_secret(name: str) -> bool:
    """Whether a setting, option or variable of this name holds a secret."""
    return _NAME.search(name) is not None


def mask_text(text: str) -> str:
    """``text`` without what has a token's form, a URL's user and password, and the values of known variables."""
    for value in (os.environ.get(name, "") for name in _VARIABLES):
        if len(value) >= 6:  # less would mask ordinary words
            text = text.replace(value, MASK)
    return _CREDENTIALS.sub(MASK, _FORMS.sub(MASK, text))


def mask_command(words: Sequence[str]) -> list[str]:
    """A command line without the values of secret options, as ``--api-key X``, ``--api-key=X``, ``--set a.token=X``."""
    masked: list[str] = []
    hide = False
    for word in words:
        name, separator, _ = word.partition("=")
        if hide and not word.startswith("--"):
            masked.append(MASK)
        elif separator and names_secret(name):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(mask_text(word))
        hide = word.startswith("-") and not separator and names_secret(word)
    return masked


def mask_values(value: Any) -> Any:
    """A JSON value without what stands under a secret name in it."""
    if isinstance(value, dict):
        return {
            key: MASK if isinstance(item, str) and names_secret(str(key)) else mask_values(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [mask_values(item) for item in value]
    return _CREDENTIALS.sub(MASK, value) if isinstance(value, str) else value
