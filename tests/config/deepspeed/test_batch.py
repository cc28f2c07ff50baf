"""Rows of a step: the triple on the ranks there are. Most of it is in tests/config/test_deepspeed.py."""

from __future__ import annotations

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.run import load_run_config

GPU = Hardware("cuda", fp16=True, bf16=True)


def sharing(size: int, micro: int, accumulation: int, world: int, strict: bool = False) -> Resolved:
    """A JSON in which ``size`` ranks share each row."""
    config = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "sequence_parallel_size": size,
        "gradient_clipping": 1.0,
    }
    return resolve(config, load_run_config(None), world, GPU, strict=strict)


@pytest.mark.parametrize(
    ("size", "micro", "accumulation", "world", "here"),
    [
        (2, 4, 2, 2, (4, 1)),
        (2, 4, 1, 2, (2, 1)),
        (4, 2, 2, 8, (1, 1)),
        (4, 6, 6, 4, (3, 3)),
        (2, 1, 1, 1, (1, 1)),  # the file was written for two ranks or four ...
        (4, 3, 1, 2, (3, 1)),
    ],
)
def test_a_row_that_ranks_would_share_is_whole_on_one_and_a_step_keeps_deepspeeds_rows(
    size: int, micro: int, accumulation: int, world: int, here: tuple[int, int]
) -> None:
    resolved = sharing(size, micro, accumulation, world)
    assert (resolved.micro_batch_size, resolved.accumulation) == here
    if world % size == 0:  # DeepSpeed's own count (runtime/config.py `_batch_assertion`)
        assert resolved.config["train_batch_size"] == micro * accumulation * world // size
    (said,) = [finding.message for finding in resolved.findings if finding.code == "parallelism-dropped"]
    assert f"sequence_parallel_size {size} is not used" in said
    assert (f"written for a multiple of {size} ranks" in said) == bool(world % size)
    assert "sequence_parallel_size" not in resolved.config
    with pytest.raises(UserError, match="--strict"):
        sharing(size, micro, accumulation, world, strict=True)


@pytest.mark.parametrize(
    ("size", "micro", "world", "words"),
    [(2, 3, 2, "2 ranks would share micro-batch 3 x accumulation 1"), (0, 1, 2, "0 must be positive")],
)
def test_rows_that_cannot_be_shared_out_are_refused(size: int, micro: int, world: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        sharing(size, micro, 1, world)


def test_one_rank_a_row_is_what_holds_anyway() -> None:
    assert not [f for f in sharing(1, 2, 1, 2, strict=True).findings if f.code == "parallelism-dropped"]
