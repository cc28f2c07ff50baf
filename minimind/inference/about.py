"""What a model was made to know, in words for people: kept beside its weights by who trained it.

    about.json   {"knows": "sums of two numbers ...", "examples": ["What is 32+41?", ...]}

Contract. The file is optional and may be a stranger's: what is read of it is one line of bounded length each.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from minimind.base.defaults import ABOUT, FINAL
from minimind.base.display import complain
from minimind.base.files import write_durably
from minimind.base.strict.json_text import read_json, reason_of

_LONGEST, _MOST_BYTES = 300, 1 << 16


@dataclass(frozen=True)
class About:
    """``knows`` goes on after "this model knows"; ``examples`` are questions to try, three at most."""

    knows: str
    examples: tuple[str, ...]


def about_model(path: Path) -> About | None:
    """What stands beside the weights of a run or an export; None where nothing does, and, said, where it is damaged."""
    for directory in (path, path / FINAL):
        try:
            return _parsed(read_json(directory, ABOUT, _MOST_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            complain(f"note: {directory / ABOUT}: not read: {reason_of(error)}")
    return None


def write_about(about: About, directory: Path) -> None:
    """Put it beside the weights in ``directory``. OSError."""
    write_durably(directory / ABOUT, json.dumps(asdict(about), ensure_ascii=False, indent=2) + "\n")


def _parsed(value: object) -> About:
    if not isinstance(value, dict) or not isinstance(value.get("examples"), list):
        raise ValueError('no object with "knows" and "examples"')
    knows, *examples = [_line(text) for text in (value.get("knows"), *value["examples"][:3])]
    return About(knows, tuple(examples))


def _line(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError("what it says is no text")
    return " ".join(text.split())[:_LONGEST]
