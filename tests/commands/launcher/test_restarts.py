"""Starting a lost run again: on the hosts that answer, with steps of the same rows, or not at all and why."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.commands.launcher import hostfile as hostfile_module
from minimind.commands.launcher import restarts, words
from minimind.commands.launcher.restarts import Batch, Launch, may_restart, taken_from


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hostfile"
    path.write_text("node1 slots=2\nnode2 slots=2\n")
    monkeypatch.setattr(words, "DEFAULT_HOSTFILE", tmp_path / "none")
    monkeypatch.setattr(restarts, "PAUSE", 0.0)
    return path


def answers(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    monkeypatch.setattr(hostfile_module, "unreachable", lambda host, port: None if host in hosts else "it is gone")


def written(run: Path, rows: int, micro: int) -> Path:
    run.mkdir()
    (run / "ds_config.json").write_text(json.dumps({"train_batch_size": rows, "train_micro_batch_size_per_gpu": micro}))
    return run


def test_restarts_stands_before_the_script_and_is_not_handed_on() -> None:
    script = ["--num_gpus", "2", "launch/pretrain.py", "--restarts", "9"]
    for given in (["--restarts", "3"], ["--restarts=3"]):
        number, launch = taken_from([*given, *script])
        assert (number, list(launch.words)) == (3, script)
    assert taken_from(script) == (0, Launch(tuple(script)))
    for wrong in (["--restarts"], ["--restarts", "-1"], ["--restarts=x"], ["--restarts=1", "--restarts=2"]):
        with pytest.raises(UserError, match="expected one number"):
            taken_from([*wrong, *script[2:]])


def test_on_the_same_hosts_the_words_are_the_same_and_resume(
    hostfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "node1", "node2")
    launch = Launch(("--hostfile", str(hostfile), "launch/sft.py", "--resume", "somewhere", "--max-steps", "9"))
    again = launch.again(tmp_path, "why")
    assert list(again.words[2:]) == ["launch/sft.py", "--max-steps", "9", "--resume", "auto", "--restarted", "why"]


def test_with_a_host_less_a_step_keeps_its_rows(
    hostfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path / "run", rows=32, micro=4)
    answers(monkeypatch, "node1")
    launch = Launch(("--hostfile", str(hostfile), "--exclude", "node2:1", "launch/pretrain.py", "--seed"))
    again = launch.again(run, "why")
    assert again.head == ["--hostfile", str(hostfile), "--include", "node1:0,1"]
    assert again.words[5:9] == ("--seed", "--set", "gradient_accumulation_steps=4", "--resume")
    assert again.words[-1] == "why; node2 does not answer: 2 ranks instead of 3, 4 micro-batches a step"


def test_where_a_step_can_not_keep_its_rows_the_reason_is_said(
    hostfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="a step of 12 rows can't be made of micro-batches of 4 on 2 ranks"):
        Batch(12, 4).accumulation(2)
    launch = Launch(("--hostfile", str(hostfile), "launch/pretrain.py"))
    answers(monkeypatch, "node2")
    with pytest.raises(UserError, match="how many rows a step has can't be read"):
        launch.again(tmp_path, "why")
    answers(monkeypatch)
    with pytest.raises(UserError, match="no host answers: node1: it is gone; node2"):
        launch.again(tmp_path, "why")


def test_only_this_projects_training_from_one_launcher_is_started_again(hostfile: Path, tmp_path: Path) -> None:
    run = Launch(("--hostfile", str(hostfile), "launch/pretrain.py", "--output-dir", str(tmp_path)))
    assert run.run_dir == tmp_path
    for other in (("launch/lr_sweep.py",), ("--hostfile", str(hostfile), "--no_ssh", "launch/pretrain.py")):
        with pytest.raises(UserError, match="can't be started again"):
            _ = Launch(other).run_dir


def test_a_host_that_include_can_not_name_is_refused_before_the_start(hostfile: Path) -> None:
    hostfile.write_text("node1 slots=2\nme@node2 slots=2\n")
    with pytest.raises(UserError, match=r"can't name me@node2: give it a name in ~/\.ssh"):
        _ = Launch(("--hostfile", str(hostfile), "launch/pretrain.py")).run_dir


def test_what_has_ended_by_itself_is_not_started_again(tmp_path: Path) -> None:
    began = time.time() - 10
    assert [code for code in (0, 1, 2, 130, 247) if may_restart(code, tmp_path, began)] == [1, 247]
    (tmp_path / "post_mortem.json").write_text("{}")
    assert not may_restart(1, tmp_path, began)
    assert may_restart(1, tmp_path, time.time() + 10)  # of an earlier run
