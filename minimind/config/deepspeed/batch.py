"""The batch triple: ``train_batch_size = micro x accumulation x world``, solved from whatever the JSON and the
YAML give.

DeepSpeed solves it with floor divisions and then asserts with derived numbers; here the three sources are
compared first and what does not divide is explained with the nearest values that do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from minimind.config.deepspeed.agreement import settle
from minimind.config.deepspeed.lint import AUTO, Draft
from minimind.config.run import RunConfig


@dataclass(frozen=True)
class BatchSizes:
    """Rows per rank and micro-batch, micro-batches per optimizer step, and which value decided."""

    micro: int
    accumulation: int
    reason: str


_YAML_NAMES = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}


def solve_batch(draft: Draft, run: RunConfig, world: int, fallback: Mapping[str, float]) -> BatchSizes | None:
    """The solved triple, or None with the reason among the draft's problems."""
    sharers = _ranks_of_a_row(draft, world)
    batch = _solve(draft, run, world // sharers, fallback)
    return batch and _spread(draft, batch, sharers)


def _ranks_of_a_row(draft: Draft, world: int) -> int:
    """How many ranks DeepSpeed lets share one row; here each has whole rows, and a step has DeepSpeed's rows."""
    key = "sequence_parallel_size"
    size = draft.get(key, 1)
    draft.drop(key)
    if not isinstance(size, int) or size == 1:
        return 1
    if size < 1:
        draft.problem(key, f"{size} must be positive")
        return 1
    fits = world % size == 0
    rows = "a step has DeepSpeed's rows, whole ones on every rank" if fits else f"on {world} each row is on one rank"
    written = "" if fits else f": the file was written for a multiple of {size} ranks"
    text = f"{key} {size} is not used{written}; {rows}"
    draft.unused("parallelism-dropped", key, text, "delete it; for long rows set gradient_checkpointing: true")
    return size if fits else 1


def _spread(draft: Draft, batch: BatchSizes, sharers: int) -> BatchSizes | None:
    """The same rows of a step, when each of the ``sharers`` of a row takes rows of its own."""
    fewer = math.gcd(batch.accumulation, sharers)
    if batch.micro % (sharers // fewer):
        draft.problem(
            "sequence_parallel_size",
            f"{sharers} ranks would share micro-batch {batch.micro} x accumulation {batch.accumulation} rows, and here "
            f"each reads rows of its own: write a gradient_accumulation_steps that {sharers} divides, or delete it",
        )
        return None
    return replace(batch, micro=batch.micro * fewer // sharers, accumulation=batch.accumulation // fewer)


def _solve(draft: Draft, run: RunConfig, world: int, fallback: Mapping[str, float]) -> BatchSizes | None:
    before = len(draft.problems)
    total = _from_json(draft, "train_batch_size")
    micro, micro_from = _given(draft, run, "train_micro_batch_size_per_gpu")
    accumulation, accumulation_from = _given(draft, run, "gradient_accumulation_steps")
    if len(draft.problems) > before:
        return None
    if total is None:
        micro_value = micro or int(fallback["per_device_train_batch_size"])
        accumulation_value = accumulation or int(fallback["gradient_accumulation_steps"])
        unset = [name for name, value in (("micro-batch", micro), ("accumulation", accumulation)) if value is None]
        reason = f"{' and '.join(unset)} by default" if unset else f"from {micro_from} and {accumulation_from}"
        return BatchSizes(micro_value, accumulation_value, reason)
    if micro and accumulation:
        said = " and ".join(dict.fromkeys((micro_from, accumulation_from)))
        return _check_product(draft, total, micro, accumulation=accumulation, world=world, reason=f"as {said} say")
    if micro:
        return _divide(draft, total, micro, world=world, known_name="micro-batch", name="accumulation")
    solved = _divide(draft, total, accumulation or 1, world=world, known_name="accumulation", name="micro-batch")
    return solved and BatchSizes(solved.accumulation, accumulation or 1, solved.reason)


def _from_json(draft: Draft, key: str) -> int | None:
    value = draft.get(key)
    if value is None or value == AUTO:
        return None
    if value <= 0:
        draft.problem(key, f"{value} must be positive")
    return int(value)


def _given(draft: Draft, run: RunConfig, key: str) -> tuple[int | None, str]:
    """The value of ``key`` from the JSON or its YAML counterpart; both and different is a problem."""
    name = _YAML_NAMES[key]
    ours, value = _from_json(draft, key), settle(draft, run, key, name)
    return value, "the JSON" if ours is not None and value == ours else run.place(name)


def _check_product(
    draft: Draft, total: int, micro: int, accumulation: int, world: int, reason: str
) -> BatchSizes | None:
    product = micro * accumulation * world
    if product == total:
        return BatchSizes(micro, accumulation, reason)
    if total % (micro * accumulation) == 0:
        return _other_ranks(draft, total, BatchSizes(micro, accumulation, reason), world)
    fitting = (
        f"; with train_batch_size {total} accumulation would be {total // (micro * world)}"
        if total % (micro * world) == 0
        else ""
    )
    draft.problem(
        "train_batch_size",
        f"{total} is not micro-batch {micro} x accumulation {accumulation} x {world} rank(s) = "
        f"{product}: delete train_batch_size to train with {product}{fitting}",
    )
    return None


def _other_ranks(draft: Draft, total: int, batch: BatchSizes, world: int) -> BatchSizes:
    """A file for another number of ranks: what each rank does stays, and the rows of a step follow the ranks."""
    ranks, rows = total // (batch.micro * batch.accumulation), batch.micro * batch.accumulation
    draft.find(
        "batch-other-ranks",
        f"train_batch_size {total:,} = micro-batch {batch.micro} x accumulation {batch.accumulation} x {ranks} "
        f"rank(s): the file was written for {ranks}; on {world} a step has {rows * world:,} rows",
        f"for {total:,} rows on {world} rank(s) change gradient_accumulation_steps, or delete train_batch_size",
        written_for=ranks,
        ranks=world,
    )
    return batch


def _divide(draft: Draft, total: int, known: int, world: int, known_name: str, name: str) -> BatchSizes | None:
    """``Batch(known, total / (known * world))``; the caller swaps the two when it solves for the micro-batch."""
    part = known * world
    if total % part == 0:
        return BatchSizes(known, total // part, f"{name} solved from train_batch_size {total}")
    lower, upper = total // part * part, (total // part + 1) * part
    choice = f"{lower} or {upper}" if lower else f"{upper}"
    draft.problem(
        "train_batch_size", f"{total} is not divisible by {known_name} {known} x {world} rank(s) = {part}: use {choice}"
    )
    return None
