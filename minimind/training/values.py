"""The numbers that the parts of a training run hand to one another: plain values, known to all of them.

A step and an evaluation as reported, and what a run is about to do. Nothing here imports another part of training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class SourceLoss:
    """One weighted source over the steps since the last report: nats per trainable token, and those tokens."""

    source: str
    loss: float
    tokens: int


@dataclass(frozen=True)
class StepMetrics:
    """One optimizer step as reported: what happened at it, and running totals up to it.

    step: 1-based, optimizer steps attempted. tokens: trainable tokens so far. loss: nats per trainable token,
    mean over the step's global batch. grad_norm: global L2 norm before clipping, unscaled; None where the engine
    has none. lr: the rate this step used. loss_scale: None outside fp16. skipped: steps so far whose update was
    not applied. applied: whether this one was. tokens_per_second: global, over the interval since the last
    report; None while it can't be trusted (the first interval holds warm-up and compilation). seconds: length of
    that interval. epoch: epochs so far, fractional. sources: at the interval's last step, with weighted sources.
    host_memory, device_memory: bytes of this rank when reported: anonymous resident memory, and the most that torch
    has had allocated on the device; None where nobody counts.
    """

    step: int
    tokens: int
    loss: float
    grad_norm: float | None
    lr: float
    loss_scale: float | None
    skipped: int
    applied: bool
    tokens_per_second: float | None
    seconds: float
    epoch: float
    sources: tuple[SourceLoss, ...] = ()
    host_memory: int | None = None
    device_memory: int | None = None


class EvalMetrics(Protocol):
    """What is reported of a held-out evaluation: nats per token, bits per UTF-8 byte."""

    @property
    def loss(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def bits_per_byte(self) -> float | None: ...


@dataclass(frozen=True)
class RunSummary:
    """What a run is about to do. None means not known beforehand; the header then says n/a or leaves it
    out.
    """

    kind: str  # "pretrain" or "sft"
    model: str  # preset name or "custom"
    parameters: int
    vocab_size: int
    rows: int  # packed rows in an epoch
    row_length: int
    fill: float  # share of row positions that hold a token, 0..1
    epoch_tokens: int  # trainable tokens in an epoch
    micro_batch_size: int
    accumulation: int
    world_size: int
    total_steps: int
    epochs: float
    precision: str
    zero_stage: int
    offload: bool
    deepspeed_config: str
    optimizer: str  # "AdamW, lr 1e-3, weight decay 0.01"
    schedule: str  # "cosine to 0.1 of the peak, warmup 24 steps"
    gradient_clipping: float
    device: str
    output_dir: str
    memory_bytes: int | None = None  # peak per rank, estimated
    expected_seconds: float | None = None
    resumed_step: int | None = None
    store: str | None = None  # the training store and the seed: with them `minimind samples` finds a step's lines
    seed: int | None = None
    sources: list[dict[str, Any]] | None = None  # weighted sources: Mixture.records()
    eval_remark: str | None = None  # how often it evaluates and why, if it chose that and it is not the usual
    data: str | None = None  # where the training documents come from
    held_out: str | None = None  # and the held-out ones
    unread: str | None = None  # fields of the training records that say something and were not read
    resume_command: str | None = None  # the command that goes on with this run
    tune_command: str | None = None  # the command that fine-tunes its model
    command_remark: str = ""  # how the two are to be typed, where it is not just so
    eval_steps: int | None = None
    evaluation_cost: float = 0.0  # one evaluation, in optimizer steps
    samples: str | None = None  # how many prompts are answered, and when
    nats_per_byte_floor: float | None = None  # of the held-out texts: the least loss that any model can have

    @property
    def rows_per_step(self) -> int:
        return self.micro_batch_size * self.accumulation * self.world_size

    @property
    def tokens_per_step(self) -> int:
        """Row positions in a full step; its trainable tokens are fewer by padding and, in SFT, by the
        prompts.
        """
        return self.rows_per_step * self.row_length


def perplexity(loss: float) -> float:
    """exp(loss), infinite where a float can't hold it (above 709 nats)."""
    if math.isnan(loss):
        return loss
    return math.exp(loss) if loss < 709 else math.inf


def evaluations(after: int, upto: int, total_steps: int, every: int) -> int:
    """Evaluations after the steps ``after`` + 1 to ``upto``: every ``every`` steps, and after the last of the run."""
    last = upto == total_steps > after and total_steps % every != 0
    return upto // every - after // every + last
