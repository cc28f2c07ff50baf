"""What a name of somebody else's YAML means here: one ``Meaning`` a name.

``used``: the same name and meaning. ``other``: this trainer has it under another name, or decides it in another way.
``unused``: without meaning here; accepted, and said when it is given another value than its own default. ``refused``:
would train differently and is not there; refused unless it is off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# Why a name has no meaning here, of several people's
KERNELS = "the model chooses its kernels"
PACKED = "rows are always packed"
PACKED_APART = f"{PACKED}, and each document sees itself only"
TEMPLATE = "the template of the tokenizer's directory holds"
OF_THE_MODEL = "the model's directory, or `model`, says what it is"

Status = Literal["used", "other", "unused", "refused"]


@dataclass(frozen=True)
class Meaning:
    """``text``: for "used" a remark or nothing, else what it is here, or why it has no meaning. ``off``: values
    that ask for nothing (besides None and False)."""

    status: Status
    text: str = ""
    off: tuple[Any, ...] = ()


def used(text: str = "") -> Meaning:
    return Meaning("used", text)


def other(text: str) -> Meaning:
    return Meaning("other", text)


def unused(text: str, *off: Any) -> Meaning:
    return Meaning("unused", text, off)


def refused(text: str, *off: Any) -> Meaning:
    return Meaning("refused", text, off)


def words_for(meaning: Meaning) -> str:
    """One cell of the table in docs/hf_arguments.md."""
    head = _HERE[meaning.status]
    if meaning.status == "used":
        return f"{head}; {meaning.text}" if meaning.text else head
    return f"{head} {meaning.text}"


_HERE = {
    "used": "used",
    "other": "here it is",
    "unused": "without meaning here:",
    "refused": "refused unless it is off:",
}
