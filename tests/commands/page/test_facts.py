"""A run's facts, its settings without secrets, and what differs."""

import json
import math
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.commands.page.facts import differences, facts, settings_of
from minimind.commands.page.html import asset
from minimind.commands.page.records import load_records
from tests.commands.page.runs import about, evaluation, finished, train, write


def _facts(directory: Path) -> dict[str, str]:
    """As an English page says them."""
    words = json.loads(asset("words.json"))["en"]
    said = {}
    for fact in facts(load_records(directory)):
        text = "{value}" if fact["text"] is None else words[f"text {fact['text']}"]
        said[words[f"fact {fact['name']}"]] = text.format(**fact["values"])
    return said


def test_facts_of_a_run(tmp_path: Path) -> None:
    floor = 0.4 * math.log(2)
    said = _facts(write(tmp_path, finished(nats_per_byte_floor=floor)))
    assert said["model"] == "tiny, 1,000 parameters" and said["steps"] == "30 of 30"
    assert said["best held-out loss"] == "0.9000 at step 30" and said["its perplexity"] == "2.46"
    assert said["beside the least possible"] == "1.125 times"
    assert said["tokens/s, median"] == "1.00k" and said["precision"] == "fp16, ZeRO 1" and said["skipped steps"] == "1"


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    said = _facts(write(tmp_path, [train(1, loss=None, skipped=None)]))
    assert said["model"] == said["loss, mean of the last 20 steps"] == said["best held-out loss"] == "n/a"


def test_memory_is_the_most_that_was_seen(tmp_path: Path) -> None:
    steps = [train(step, host_memory=size << 30) for step, size in ((1, 1), (2, 3), (3, 2))]
    assert _facts(write(tmp_path, [about(3), *steps, evaluation(3, math.nan)]))["most host memory"] == "3.00 GiB"


def test_differences_and_torn_settings(tmp_path: Path) -> None:
    first = settings_of(write(tmp_path / "a", [], "learning_rate: 0.001\nmodel:\n  hidden_size: 64\n"))
    second = settings_of(write(tmp_path / "b", [], "learning_rate: 0.0003\nmodel:\n  hidden_size: 64\n"))
    assert differences([first, second]) == [("learning_rate", ["0.001", "0.0003"])]
    (tmp_path / "b" / "config.yaml").write_text("learning_rate: [")
    assert ("learning_rate", ["0.001", "-"]) in differences([first, settings_of(tmp_path / "b")])


def test_settings_hold_no_secrets_and_no_changes(tmp_path: Path) -> None:
    write(tmp_path, [], "url: https://me:s3cret@host/x\n")
    environment = {"command": ["x", "--api-key", "s3cret"], "git_diff": "s3cret", "token": "s3cret"}
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    assert "s3cret" not in json.dumps(settings_of(tmp_path))
    (tmp_path / "environment.json").write_text('{"token": "s3cret"')
    assert "s3cret" not in json.dumps(settings_of(tmp_path))


def test_a_link_out_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "run", [])
    (tmp_path / "secret").write_text("mine: 1")
    (tmp_path / "run" / "config.yaml").unlink()
    (tmp_path / "run" / "config.yaml").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"config\.yaml: leads out of .* by a link"):
        settings_of(tmp_path / "run")
