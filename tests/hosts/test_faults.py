"""What is lost between two hosts ends the run on both, soon, with a sentence; and what is not lost costs nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimind.training.process.starter.typed_line import UNKNOWN
from tests.faults.comparison import CURVE, assert_same_state, records, state
from tests.faults.test_faults import MODEL
from tests.hosts.bed import Bed, Missing
from tests.hosts.fleet import Fleet, Rank, wait_for_steps
from tests.support import DS_CONFIGS
from tests.waiting import wait_for

SETTINGS = [MODEL, "max_seq_length=48", "logging_steps=1", "save_steps=2", "save_total_limit=2", "num_workers=1"]
SOON = ["--set", "heartbeat={limit: 10, start_limit: 10}"]
LONG = ["--max-steps", "1000000", *SOON]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    try:
        with Bed(tmp_path_factory.mktemp("hosts") / "bed") as bed, Fleet(bed) as fleet:
            yield fleet
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True)
def _joined(fleet: Fleet) -> Iterator[None]:
    yield
    fleet.bed.mend()


def words(files: dict[str, Path], run: Path, *more: str) -> list[str]:
    """A tiny run in fp32."""
    options = {"--deepspeed_config": DS_CONFIGS / "fp32.json", "--train-file": files["pretrain"]}
    options |= {"--tokenizer": files["tokenizer"], "--output-dir": run}
    given = [str(word) for option in options.items() for word in option]
    return [*given, *(word for setting in SETTINGS for word in ("--set", setting)), *more]


def check_sentence(rank: Rank, run: Path, start: str, certain: bool = True) -> None:
    """One line: who is lost, the last complete checkpoint, and the command to go on. Who is cut off from the first host
    is not ``certain``: it may not have been told of the last one."""
    what, _, rest = rank.error.partition("; ")
    assert what.startswith(f"error: {start}"), rank.error
    saved, _, command = rest.partition(f"; go on ({UNKNOWN}) with: ")
    latest = (run / "latest").read_text().strip()
    if certain:
        assert saved == f"the last complete checkpoint is {run / latest}", rank.error
    else:
        known = f"the last complete checkpoint known here is {run / 'checkpoints'}/step-"
        assert saved.startswith(known) and saved <= f"the last complete checkpoint known here is {run / latest}"
    assert command.startswith("deepspeed ") and command.endswith(" --resume") and f"--output-dir {run} " in command
    assert "Traceback" not in rank.text, rank.text


def test_a_killed_rank_ends_the_other_host(fleet: Fleet, files: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = ranks = fleet.start(words(files, run, *LONG))
    wait_for_steps(run, ranks)
    second.signal(signal.SIGKILL)
    assert (first.wait(), second.wait()) == (1, -signal.SIGKILL), first.text
    for rank in ranks:  # the killed one's pulse has outlived it
        check_sentence(rank, run, "rank 1 on node2 was killed, or has ended without a word")


def test_a_cut_link_ends_both_hosts(fleet: Fleet, files: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = ranks = fleet.start(words(files, run, *LONG))
    wait_for_steps(run, ranks, 6)  # so that the second host knows of a checkpoint: a save waits for the one before
    fleet.bed.cut()
    assert (first.wait(), second.wait()) == (1, 1), [rank.text for rank in ranks]
    check_sentence(first, run, "rank 1 on node2 has not been heard for ")
    check_sentence(second, run, "rank 0 on node1 has not been heard for ", certain=False)


def test_a_frozen_rank_ends_both_hosts(fleet: Fleet, files: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = ranks = fleet.start(words(files, run, *LONG))
    wait_for_steps(run, ranks)
    second.signal(signal.SIGSTOP)
    assert (first.wait(), second.wait()) == (1, 1), [rank.text for rank in ranks]
    for rank in ranks:
        check_sentence(rank, run, "rank 1 on node2 has been stopped (SIGSTOP) for ")


def test_a_rank_that_is_lost_before_torch_connects_the_hosts_ends_the_other(
    fleet: Fleet, files: dict[str, Path], tmp_path: Path
) -> None:
    """They have met; gloo would wait half an hour for it."""
    run = tmp_path / "run"
    first, second = fleet.start(words(files, run, *LONG), only={1: {"MINIMIND_TEST_LOST": "1"}})
    assert (first.wait(), second.wait()) == (1, -signal.SIGKILL), first.text
    what, _, rest = first.error.partition("; ")
    assert what == "error: rank 1 on node2 was killed, or has ended without a word"
    assert rest.startswith("no checkpoint of this start is complete yet: start again (") and "--resume" not in rest
    assert "Traceback" not in first.text


def test_a_killed_rank_ends_a_sweep_on_the_other_host(fleet: Fleet, files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    rates = ["--learning-rates", "1e-4,1e-3", "--steps", "1000000", *SOON]
    first, second = fleet.start(words(files, out, *rates), script="lr_sweep")
    wait_for(lambda: (out / "config.yaml").exists())
    second.signal(signal.SIGKILL)
    assert (first.wait(), second.wait()) == (1, -signal.SIGKILL), first.text
    assert first.error.startswith("error: rank 1 on node2 was killed, or has ended without a word; start again (")
    assert " launch/lr_sweep.py " in first.error and "--learning-rates 1e-4,1e-3" in first.error
    assert "Traceback" not in first.text


@pytest.mark.parametrize("here", [0, 1])
def test_a_host_that_never_starts_is_waited_for_no_longer_than_the_limit(
    here: int, fleet: Fleet, files: dict[str, Path], tmp_path: Path
) -> None:
    (rank,) = fleet.start(words(files, tmp_path / "run", *LONG), hosts=[here])
    assert rank.wait() == 1
    expected = ("rank 1 did not start within 10 s", "rank 0 did not answer at node1:")[here]
    assert rank.error.startswith(f"error: {expected}") and "on every host" in rank.error
    assert "Traceback" not in rank.text


def test_a_link_that_comes_back_costs_nothing(fleet: Fleet, files: dict[str, Path], tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    steps = ["--max-steps", "40"]
    fleet.run(words(files, whole, *steps))
    ranks = fleet.start(words(files, cut, *steps))
    wait_for_steps(cut, ranks)
    fleet.bed.cut()
    fleet.bed.mend()
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.text for rank in ranks]
    assert records(cut, "train", CURVE) == records(whole, "train", CURVE)
    last = (whole / "latest").read_text().strip()
    assert_same_state(state(cut / last), state(whole / last), last)


def test_a_notice_to_one_host_saves_on_both_and_the_same_command_goes_on(
    fleet: Fleet, files: dict[str, Path], tmp_path: Path
) -> None:
    """A spot machine's SIGTERM comes to the second host only; the job script has one command line."""
    run, job = tmp_path / "run", ["--max-steps", "30", "--resume", "auto"]
    ranks = fleet.start(words(files, run, "--max-steps", "1000000", "--resume", "auto"))
    wait_for_steps(run, ranks, saved=False)
    assert "nothing-to-resume" in ranks[0].text
    ranks[1].signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.text for rank in ranks]
    stopped = (run / "latest").read_text()
    before = len(records(run, "train", ("step",)))
    assert int(stopped.strip()[-8:]) == before
    ranks = fleet.run(words(files, run, *job[:1], str(before + 2), *job[2:]))
    assert [step for (step,) in records(run, "train", ("step",))] == list(range(1, before + 3))
    assert "nothing-to-resume" not in ranks[0].text


def test_a_run_that_ends_leaves_no_pulse_behind_and_one_without_heartbeat_has_none(
    fleet: Fleet, files: dict[str, Path], tmp_path: Path
) -> None:
    ranks = fleet.start(words(files, tmp_path / "on", "--max-steps", "1000000"))
    wait_for_steps(tmp_path / "on", ranks)
    assert [len(host.processes("heart.pulse")) for host in fleet.bed.hosts] == [1, 1]
    ranks[0].signal()
    assert [rank.wait() for rank in ranks] == [0, 0]
    wait_for(lambda: not any(host.processes("heart.pulse") for host in fleet.bed.hosts))
    ranks = fleet.start(words(files, tmp_path / "off", "--max-steps", "1000000", "--set", "heartbeat=off"))
    wait_for_steps(tmp_path / "off", ranks)
    assert not any(host.processes("heart.pulse") for host in fleet.bed.hosts)
    ranks[0].signal()
    assert [rank.wait() for rank in ranks] == [0, 0]
