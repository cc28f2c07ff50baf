"""`minimind launch --restarts`: a host that is gone for good does not end the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.hosts.bed import Bed, signal_to
from tests.hosts.test_faults import words
from tests.waiting import PATIENCE, wait_for


def of_kind(run: Path, kind: str) -> list[dict[str, object]]:
    text = (run / "metrics.jsonl").read_text(errors="replace") if (run / "metrics.jsonl").exists() else ""
    return [record for line in text.splitlines()[:-1] if (record := json.loads(line))["kind"] == kind]


@pytest.mark.slow
def test_after_a_lost_host_the_run_goes_on_with_the_other_one(
    ssh_bed: Bed, files: dict[str, Path], tmp_path: Path
) -> None:
    if shutil.which("pdsh") is None:
        pytest.skip("no pdsh here: apt-get install pdsh")
    first, second = ssh_bed.hosts
    run, log = tmp_path / "run", (tmp_path / "log").open("w")
    options = ["--restarts", "2", "--hostfile", ssh_bed.hostfile(), "--master_port", "29800"]
    command = ["minimind", "launch", *options, "launch/pretrain.py", *words(files, run, "--max-steps", "1000000")]
    launch = first.start(command, log, PDSH_RCMD_TYPE="ssh")
    wait_for(lambda: (run / "latest").exists(), launch)
    before = json.loads((run / "ds_config.json").read_text())
    second.kill()
    wait_for(lambda: any(record.get("code") == "restarted" for record in of_kind(run, "finding")), launch)
    steps = len(of_kind(run, "train"))
    wait_for(lambda: len(of_kind(run, "train")) > steps + 2, launch)
    signal_to(launch)
    assert launch.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    after = json.loads((run / "ds_config.json").read_text())
    assert after["train_batch_size"] == before["train_batch_size"]
    assert after["gradient_accumulation_steps"] == 2 * before["gradient_accumulation_steps"]
    numbers = [record["step"] for record in of_kind(run, "train")]
    assert numbers == list(range(1, len(numbers) + 1))
    text = (tmp_path / "log").read_text()
    assert "node2 does not answer: 1 ranks instead of 2, 2 micro-batches a step" in text
    assert "Traceback" not in text and "rank 1 on node2" in text
