"""The public names: load, train, read."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import minimind
from minimind.base.errors import UserError
from tests.support import DS_CONFIGS

SHAPE = {
    "vocab_size": 330,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
}


def settings(files: dict[str, Path], output: Path) -> dict[str, Any]:
    return {
        "train_file": [str(files["pretrain"])],
        "tokenizer": str(files["tokenizer"]),
        "output_dir": str(output),
        "model": SHAPE,
        "max_seq_length": 32,
        "max_steps": 2,
    }


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, minimind; print(sorted({'torch', 'deepspeed', 'yaml'} & set(sys.modules)), minimind.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] ['load', 'read', 'train']"


def test_nothing_else_is_public() -> None:
    assert {"load", "read", "train"} <= set(dir(minimind))
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        minimind.fit  # noqa: B018


@pytest.mark.usefixtures("one_rank")
def test_train_load_generate_and_chat(files: dict[str, Path], tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    run = minimind.train("pretrain", settings(files, tmp_path / "run"), DS_CONFIGS / "fp32.json")
    assert run == tmp_path / "run" and (run / "final" / "model.safetensors").is_file()
    assert {number: signal.getsignal(number) for number in before} == before
    model = minimind.load(run)
    greedy = {"temperature": 0.0, "max_new_tokens": 8}
    assert model.generate("river", **greedy) == "".join(model.stream("river", **greedy))
    question = [{"role": "user", "content": "river"}]
    assert model.chat("river", **greedy) == model.chat(question, **greedy)
    tuned = {**settings(files, tmp_path / "tuned"), "train_file": [str(files["sft"])]}
    del tuned["model"]
    assert (minimind.train("sft", tuned, DS_CONFIGS / "sft_fp32.json", model=run) / "final").is_dir()


@pytest.mark.usefixtures("one_rank")
def test_what_a_person_can_mend_is_a_user_error(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model"):
        minimind.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="learning_rat"):
        minimind.train("pretrain", {"learning_rat": 1}, DS_CONFIGS / "fp32.json")
    run = minimind.train("pretrain", settings(files, tmp_path / "run"), DS_CONFIGS / "fp32.json")
    with pytest.raises(UserError, match="heat"):
        minimind.load(run).generate("river", heat=2)
    with pytest.raises(UserError, match="ends with the question"):
        minimind.load(run).chat([{"role": "assistant", "content": "river"}])
    with pytest.raises(UserError, match="role"):
        minimind.load(run).chat([{"role": "poet", "content": "river"}])


def test_read_gives_documents_with_their_places(files: dict[str, Path], tmp_path: Path) -> None:
    texts, talks = list(minimind.read(files["pretrain"])), list(minimind.read([files["sft"]], kind="sft"))
    rows = [json.loads(line) for line in files["sft"].read_text(encoding="utf-8").splitlines()]
    assert (len(texts), texts[3].line, texts[3].turns) == (120, 4, None)
    assert [list(map(dict, talk.turns or ())) for talk in talks] == [row["conversations"] for row in rows]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"text": 3}\n')
    found = minimind.read(bad)
    assert next(found).text == "good"
    with pytest.raises(UserError, match=re.escape(f"{bad}:2")):
        next(found)


@pytest.mark.usefixtures("one_rank")
def test_the_example_of_the_documentation_runs(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first Python block of docs/api.md, in a directory with a text.jsonl, at the tests' size."""
    page = (DS_CONFIGS.parent / "docs" / "api.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "text.jsonl").write_bytes(files["pretrain"].read_bytes())
    (tmp_path / "ds_configs").symlink_to(DS_CONFIGS)
    monkeypatch.chdir(tmp_path)
    small = {**settings(files, tmp_path / "run"), "train_file": ["text.jsonl"]}
    assert '"max_steps": 200' in example
    exec(example.replace('"max_steps": 200', f'"max_steps": 2, **{small!r}'), {})
