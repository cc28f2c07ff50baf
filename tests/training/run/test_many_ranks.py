"""More ranks are the same run: what four or eight gloo ranks train is what one trains, but for the order of sums."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.comparison import records
from tests.faults.fork_server import ForkServer
from tests.faults.test_faults import SETTINGS
from tests.support import DS_CONFIGS

ROWS = 16  # of a step


def train(server: ForkServer, files: dict[str, Path], out: Path, ranks: int) -> list[tuple[float, ...]]:
    """Step, tokens, loss and gradient norm of each step."""
    config = json.loads((DS_CONFIGS / "fp32.json").read_text()) | {"train_batch_size": ROWS}
    config["zero_optimization"] = {"stage": 2 if ranks > 1 else 0}
    path = out.with_suffix(".json")
    path.write_text(json.dumps(config))
    options = {"--deepspeed_config": path, "--train-file": files["pretrain"], "--tokenizer": files["tokenizer"]}
    settings = [*SETTINGS[:-1], "logging_steps=1", f"per_device_train_batch_size={ROWS // 8}", "learning_rate=1e-2"]
    words = [str(word) for option in options.items() for word in option]
    words += [word for setting in settings for word in ("--set", setting)]
    codes, text = server.run([*words, "--output-dir", str(out), "--max-steps", "12"], out, None, ranks)
    assert codes == [0] * ranks, text
    return records(out, "train", ("step", "tokens", "loss", "grad_norm"))


def check(files: dict[str, Path], directory: Path, ranks: int) -> None:
    with ForkServer() as server:
        one, many = (train(server, files, directory / f"of-{count}", count) for count in (1, ranks))
    assert len(one) == 12 and one[-1][2] < one[0][2]
    assert many == [pytest.approx(row, rel=2e-4) for row in one]


def test_four_ranks_train_what_one_trains(files: dict[str, Path], tmp_path: Path) -> None:
    check(files, tmp_path, 4)


@pytest.mark.soak
def test_eight_ranks_train_what_one_trains(files: dict[str, Path], tmp_path: Path) -> None:
    check(files, tmp_path, 8)
