"""How files are read: one value, the same from a run's configuration, as words of a command, and for every reader."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields

import pytest

from minimind.base.errors import UserError
from minimind.config.run import RunConfig, load_run_config
from minimind.data.records.conversations import Fields
from minimind.data.records.options import BY_CONTENT, LIMITS, READING, ReadingOptions

EVERYTHING = ReadingOptions("qa", "body", "prompt=q", "gb18030", True, "drop", skip_bad=True, max_bad_ratio=0.5)


def test_every_option_is_a_key_of_the_run_with_the_same_default() -> None:
    names = {field.name for field in fields(ReadingOptions)}
    assert names == {*READING, *LIMITS} <= set(RunConfig.model_fields)
    assert ReadingOptions.of(load_run_config(None)) == BY_CONTENT
    values = {name: getattr(EVERYTHING, name) for name in names}
    assert ReadingOptions.of(load_run_config(None, cli=values)) == EVERYTHING


def test_fields_are_the_four_options_together() -> None:
    assert EVERYTHING.fields == Fields("qa", {"prompt": "q", "text": "body"}, "drop")
    assert BY_CONTENT.fields == Fields()


@pytest.mark.parametrize("wrong", [{"format": "xml"}, {"map": "prompt"}, {"map": "answer=a"}, {"reasoning": "keep"}])
def test_what_can_not_be_meant_is_refused_at_once(wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(wrong))}"):
        ReadingOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        BY_CONTENT.format = "qa"  # type: ignore[misc]


def test_the_words_of_a_command() -> None:
    reading = ["--format", "qa", "--text-field", "body", "--map", "prompt=q", "--encoding", "gb18030"]
    assert EVERYTHING.words() == [*reading, "--allow-special", "--reasoning", "drop"]
    assert EVERYTHING.words(LIMITS) == ["--skip-bad", "--max-bad-ratio", "0.5"]
    assert BY_CONTENT.words((*READING, *LIMITS)) == []


def test_declaring_them_loads_nothing_heavy() -> None:
    code = "import sys, minimind.data.records.options; print({'numpy', 'torch', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
