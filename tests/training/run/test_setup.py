"""From the options to the stores of a run: how files are read, finished stores, weighted sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.config.run import load_run_config
from minimind.data.records.conversations import Kind
from minimind.data.store.mixture import Part
from minimind.data.store.prepare import prepare
from minimind.text.tokenizer import Tokenizer
from minimind.training.run.arguments import config_options, parse
from minimind.training.run.setup import Data, prepare_data


class Alone:
    """The control of a run on one rank."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def all_do(self, work: Any) -> Any:
        return work()

    def first_does(self, work: Any) -> Any:
        return work()


def data(kind: Kind, files: dict[str, Path], *options: str) -> Data:
    """What the command line ``options`` would train on."""
    model = ["--model", "none"] if kind == "sft" else []
    words = ["--deepspeed_config", "none.json", *model, "--tokenizer", str(files["tokenizer"]), *options]
    arguments = parse(kind, words)
    config = load_run_config(arguments.config, arguments.set, config_options(arguments))
    return prepare_data(Alone(), kind, config)  # type: ignore[arg-type]


def write(path: Path, *values: object, encoding: str = "utf-8") -> Path:
    path.write_text("".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values), encoding=encoding)
    return path


def test_files_are_read_as_the_options_say(files: dict[str, Path], tmp_path: Path) -> None:
    body = write(tmp_path / "body.jsonl", {"body": "little river"})
    assert len(data("pretrain", files, "--train-file", str(body), "--text-field", "body").train) == 1
    qa = write(tmp_path / "qa.jsonl", {"q": "river?", "a": "stone"})
    assert len(data("sft", files, "--train-file", str(qa), "--map", "prompt=q,answer=a").train) == 1
    marked = write(tmp_path / "m.jsonl", {"text": "<s>山上</s> <s>小猫</s>"}, encoding="gb18030")
    options = ("--train-file", str(marked), "--encoding", "gb18030")
    assert len(data("pretrain", files, *options).train) == 1
    assert len(data("pretrain", files, *options, "--allow-special").train) == 2
    with pytest.raises(UserError, match="--format xml: unknown"):
        data("pretrain", files, "--train-file", str(marked), "--format", "xml")


def test_the_yaml_keys_are_the_same(files: dict[str, Path], tmp_path: Path) -> None:
    qa = write(tmp_path / "qa.jsonl", {"q": "river?", "a": "stone"})
    yaml = tmp_path / "run.yaml"
    yaml.write_text(f"train_file: {qa}\neval_file: {qa}\nmap: {{prompt: q, answer: a}}\n")
    found = data("sft", files, "--config", str(yaml))
    assert (len(found.train), found.parts) == (1, None)
    assert found.held_out is not None and found.held_out.path == found.train.path


def finished(files: dict[str, Path], output: Path, kind: Kind = "pretrain", length: int = 64) -> Path:
    return prepare([files[kind]], Tokenizer.load(files["tokenizer"]), output, kind, length)


def test_a_finished_store_is_used_as_it_is(files: dict[str, Path], tmp_path: Path) -> None:
    store = finished(files, tmp_path / "store")
    assert data("pretrain", files, "--train-file", str(store)).train.path == store


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("sft", [], "was made for pretrain, not for sft"),
        ("pretrain", ["--format", "text"], "is finished, so format can't apply to it"),
        ("pretrain", ["--set", "train_file=[{path: STORE, weight: 2}, TEXT]"], "can't be mixed with others"),
        ("pretrain", ["--set", "train_file=[STORE, TEXT]"], "can't be mixed with others"),
    ],
)
def test_a_store_that_does_not_fit_is_refused(
    kind: Kind, options: list[str], message: str, files: dict[str, Path], tmp_path: Path
) -> None:
    store = finished(files, tmp_path / "store")
    words = [word.replace("STORE", str(store)).replace("TEXT", str(files["pretrain"])) for word in options]
    given = [] if "--set" in options else ["--train-file", str(store)]
    with pytest.raises(UserError, match=message):
        data(kind, files, *given, *words)


def test_a_store_of_longer_conversations_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    store = finished(files, tmp_path / "store", "sft", 64)
    assert len(data("sft", files, "--train-file", str(store), "--set", "max_seq_length=64").train) == 80
    with pytest.raises(UserError, match="rows of 64, longer than max_seq_length 48"):
        data("sft", files, "--train-file", str(store), "--set", "max_seq_length=48")


def test_weighted_sources_know_their_files(files: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "many"
    directory.mkdir()
    for name in ("a", "b"):
        write(directory / f"{name}.jsonl", {"text": f"house {name}"})
    text = files["pretrain"]
    setting = f"train_file=[{{path: {directory}, weight: 3}}, {{path: {text}, weight: 0.5}}]"
    found = data("pretrain", files, "--set", setting)
    assert found.parts == [Part(str(directory), 3.0, 2), Part(str(text), 0.5, 1)]
    assert len(found.train) == 122
    # the store does not depend on the weights
    again = data("pretrain", files, "--set", setting.replace("0.5", "2"))
    assert again.train.path == found.train.path


def test_a_store_of_another_tokenizer_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    from minimind.text.tokenizer import train_tokenizer

    store = finished(files, tmp_path / "store")
    lines = files["pretrain"].read_text("utf-8").splitlines()
    other = train_tokenizer([json.loads(line)["text"] for line in lines], tmp_path / "t", 320)
    with pytest.raises(UserError, match="was made with another tokenizer than"):
        data("pretrain", {**files, "tokenizer": other}, "--train-file", str(store))
