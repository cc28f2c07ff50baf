"""Slips in the names of options, by the real parsers of the launch scripts and of `minimind`."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimind import cli
from minimind.base.command_lines import as_known, hint
from minimind.training.run.arguments import parse

KNOWN = ("--train-file", "--deepspeed_config", "--output-dir")


def test_underscores_and_dashes_are_one() -> None:
    words = ["--train_file", "a_b.jsonl", "--deepspeed-config=x_y.json", "--local_rank=0", "-"]
    assert as_known(words, KNOWN) == [
        "--train-file",
        "a_b.jsonl",
        "--deepspeed_config=x_y.json",
        "--local_rank=0",  # unknown: as it is
        "-",
    ]


def test_a_launch_script_takes_them_and_prints_its_own_names() -> None:
    options = parse("pretrain", ["--train_file", "a.jsonl", "--output_dir=out", "--deepspeed-config", "d.json"])
    assert (options.train_file, options.output_dir) == ([Path("a.jsonl")], Path("out"))
    assert options.words == ["--train-file", "a.jsonl", "--output-dir=out", "--deepspeed_config", "d.json"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--train-fiel", "--train-fiel: did you mean --train-file?"),
        ("--traim_file=x", "--traim_file: did you mean --train-file?"),
        ("--learning_rate", "--learning_rate is a setting: --set learning_rate=VALUE"),
        ("--something-else", ""),
    ],
)
def test_what_an_unknown_option_may_have_meant(word: str, said: str) -> None:
    assert hint(word, KNOWN, ("learning_rate",)) == said


def test_an_unknown_option_of_a_launch_script_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("sft", ["--learning-rate", "1e-3", "--resum"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--learning-rate is a setting: --set learning_rate=VALUE; --resum: did you mean --resume?" in said


def test_minimind_takes_both_spellings_and_names_the_commands_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "--deepspeed-config", "none.json", "--device_memory", "6GiB"], debug=False) == 2
    assert "none.json" in capsys.readouterr().err
    assert cli.run(["plan", "--device-memroy", "6GiB"], debug=False) == 2
    said = capsys.readouterr().err
    assert "--device-memory" in said and "(minimind plan --help)" in said
