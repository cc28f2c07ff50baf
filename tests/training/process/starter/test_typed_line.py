"""The line that is shown to be typed is the one that was typed, whoever has started the ranks."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minimind.base.command_lines import OwnCommand, Started
from minimind.base.launcher import free_port
from minimind.training.process.starter import typed_line
from minimind.training.process.starter.typed_line import EVERYWHERE, HANDED_ON, HIDDEN, SRUN, as_typed, hand_on, shared
from tests.support import OneRank
from tests.training.process.test_world import MASTER, OPEN_MPI, STEP

ROOT = Path(__file__).parents[4]
BIN = Path(sys.executable).parent
# A launch script that does nothing but say, into a file of its rank, which line goes on with it
SCRIPT = """
import json, os, sys
from pathlib import Path
from minimind.base.command_lines import OwnCommand
from minimind.training.process.starter.typed_line import find_started
from minimind.training.process.world import enter
world, words = enter(), sys.argv[1:]
started = find_started(sys.argv[0], words, os.environ)
own = OwnCommand("pretrain", words, started=started)
facts = {"ranks": world.size, "line": own.line("--resume"), "tune": own.line(script="sft"), "remark": own.remark}
facts |= {"words": words, "whole": started is not None and started.whole}
Path(f"{'again' if '--resume' in words else 'first'}-{world.rank}.json").write_text(json.dumps(facts))
"""
OPTIONS = ["--output-dir", "my run's $c {a,b}", "--set", "seed=3", "--train_file", "a b.jsonl"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with launch scripts, in which lines are typed; the programs of this Python are on the PATH."""
    (tmp_path / "launch").mkdir()
    for name in ("pretrain.py", "sft.py"):
        (tmp_path / "launch" / name).write_text(SCRIPT)
    for name in list(os.environ):
        if name.startswith(("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "SLURM_", "OMPI_", "PMI", "CROSS_", HANDED_ON)):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def type_(line: str, here: Path, **environment: str) -> None:
    """In a shell, as a person does."""
    shell = ["bash", "-c", line]
    ended = subprocess.run(shell, cwd=here, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def said(here: Path, name: str = "first-0") -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((here / f"{name}.json").read_text())
    return facts


STARTERS = {
    "python": "python launch/pretrain.py",
    "torchrun": "torchrun --nproc-per-node 2 --master-port PORT launch/pretrain.py",
    "a module": "timeout 900 python -m torch.distributed.run --nproc-per-node=2 --master-port=PORT launch/pretrain.py",
    "mpirun": "mpirun --allow-run-as-root --oversubscribe -np 2 python launch/pretrain.py",
    "deepspeed": "deepspeed --master_port PORT --num_gpus 2 launch/pretrain.py",
    "minimind launch": "minimind launch --restarts 2 --num_gpus=2 launch/pretrain.py",
}
TYPED_AGAIN = ("python", "torchrun", "mpirun")  # the others are the same line, and take ten seconds a start


@pytest.mark.parametrize("starter", STARTERS)
def test_the_line_is_the_one_that_was_typed_and_goes_on(starter: str, here: Path) -> None:
    start = STARTERS[starter].replace("PORT", str(free_port()))
    if shutil.which(start.split()[0]) is None:
        pytest.skip(f"no {start.split()[0]} here")
    line = f"{start} {shlex.join(OPTIONS)}"
    type_(line, here)
    facts = said(here)
    ranks = 1 if starter == "python" else 2
    assert facts["line"] == f"{line} --resume" and facts["whole"] and facts["remark"] == "" and facts["ranks"] == ranks
    assert facts["tune"] == line.replace("pretrain.py", "sft.py"), "the script beside this one"
    if starter in TYPED_AGAIN:
        type_(facts["line"], here)
        again = said(here, f"again-{ranks - 1}")
        assert [word for word in again["words"] if "local" not in word] == [*OPTIONS, "--resume"]
        assert again["ranks"] == ranks and again["line"] == facts["line"]


def test_by_hand_each_rank_has_its_own_environment(here: Path) -> None:
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **MASTER}
    type_("python launch/pretrain.py --seed 1", here, **variables)
    facts = said(here)
    assert facts["remark"] == "for this rank"
    type_(facts["line"], here)
    assert said(here, "again-0")["line"] == facts["line"], "the line needs no other environment"


def test_sruns_line_is_made_from_its_step_and_mpiruns_is_asked_for_elsewhere(here: Path) -> None:
    type_("python launch/pretrain.py --seed 1", here, **STEP, **MASTER)
    facts = said(here, "first-3")
    assert facts["line"] == "srun --nodes 2 --ntasks 4 python launch/pretrain.py --seed 1 --resume"
    assert facts["remark"] == SRUN and facts["whole"]
    type_("python launch/pretrain.py --seed 1", here, **OPEN_MPI, **MASTER)
    facts = said(here, "first-3")
    assert facts["line"] == "mpirun python launch/pretrain.py --seed 1 --resume"
    assert facts["remark"] == "with mpirun's options, which this host was not told" and not facts["whole"]


def test_a_launcher_of_each_host_is_typed_on_each(here: Path) -> None:
    agents = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}
    type_("python launch/pretrain.py", here, **agents, **MASTER, SLURM_PROCID="0")
    assert said(here)["remark"] == "for this rank"
    head = ("torchrun", "--nnodes", "2", "launch/pretrain.py")
    assert typed_line._typed(head, head[-1], agents).remark == EVERYWHERE
    assert typed_line._typed(head, head[-1], {**agents, "GROUP_WORLD_SIZE": "1"}).remark == ""


def test_what_minimind_launch_hands_on_stays_what_was_typed_when_it_starts_a_run_again(here: Path) -> None:
    """On another host, where no process above has it, and with options that nobody asked for."""
    environment: dict[str, str] = {}
    hand_on(["--hostfile", "my hosts", "launch/pretrain.py", "--seed", "1", "--resume", "auto"], environment)
    raised = ["--seed", "1", "--set", "gradient_accumulation_steps=2", "--resume", "auto", "--restarted", "node2; gone"]
    type_(f"python launch/pretrain.py {shlex.join(raised)}", here, **environment)
    line = said(here, "again-0")["line"]
    assert line == "minimind launch --hostfile 'my hosts' launch/pretrain.py --seed 1 --resume"
    type_("python launch/pretrain.py --seed 2", here, **environment)  # of an older launch: not this one's
    assert said(here)["line"] == "python launch/pretrain.py --seed 2 --resume"


def test_a_secret_before_the_script_is_not_shown() -> None:
    line = ("mpirun", "-x", "WANDB_API_KEY=0123456789", "-x", "A=b", "launch/pretrain.py")
    started = typed_line._typed(line, line[-1], {})
    assert started.head == ("mpirun", "-x", "WANDB_API_KEY=***", "-x", "A=b") and started.remark == HIDDEN


def test_a_sweep_is_not_told_to_start_again(here: Path) -> None:
    started = Started(("minimind", "launch", "--restarts", "3", "--num_gpus", "2"), "launch/pretrain.py")
    assert started.before("lr_sweep")[:4] == ["minimind", "launch", "--num_gpus", "2"]
    assert started.before("sft")[:4] == ["minimind", "launch", "--restarts", "3"]
    assert OwnCommand("pretrain").line().startswith("deepspeed "), "without a start that is known"


def test_a_programs_first_line_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, other = tmp_path / "bin" / "torchrun", tmp_path / "other" / "torchrun"
    for path in (program, other):
        path.parent.mkdir()
        path.write_text("#!/usr/bin/python3\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert as_typed(["/usr/bin/python3", str(program), "--nnodes", "2"]) == ["torchrun", "--nnodes", "2"]
    assert as_typed(["/usr/bin/python3", str(other), "--nnodes", "2"]) == [str(other), "--nnodes", "2"]
    assert as_typed(["python", "-m", "torch.distributed.run"]) == ["python", "-m", "torch.distributed.run"]
    assert as_typed(["python"]) == ["python"] and as_typed([]) == []


def test_who_does_not_know_the_line_is_told_it() -> None:
    whole, part = Started(("mpirun", "-np", "4"), "s.py"), Started(("mpirun",), "s.py", whole=False)

    class Ranks(OneRank):
        def __init__(self, *others: Started | None) -> None:
            self.others = others

        def gather(self, value: Any) -> list[Any]:
            every = [
                value,
                *(None if o is None else (o.head, o.script, o.options, o.remark, o.whole) for o in self.others),
            ]
            return list(json.loads(json.dumps(every)))

    assert shared(Ranks(whole), part) == whole
    assert shared(Ranks(part, None), part) == part
    assert shared(Ranks(whole), own := Started(("torchrun",), "s.py")) == own
    assert shared(Ranks(whole), None) is None
