"""MiniMind's way (https://github.com/jingyaogong/minimind, trainer/train_pretrain.py), its essentials rebuilt.

Every document padded to 340, autocast to the job's precision (MiniMind itself does that on a GPU only), the mean loss
of each micro-batch, AdamW 5e-4 with torch's defaults, clipping at 1.0, cosine from the first step to a tenth, no
warmup. In its favour: documents are tokenised beforehand, and the model is transformers' Llama, whose pieces are
MiniMind's (RMSNorm, rotary positions, SDPA, SwiGLU) and which is of the same shape as ours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F

from benchmarks.llama import documents, documents_per_step, held_out, new_llama
from benchmarks.memory_use import Peak
from benchmarks.workers import Commands, Job
from minimind.text.tokenizer import PAD_ID

LENGTH = 340
LEARNING_RATE = 5e-4
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def learning_rate(step: int, total_steps: int, peak: float) -> float:
    """MiniMind's get_lr: cosine from ``peak`` to a tenth of it."""
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * step / total_steps)))


def serve(job: Job, commands: Commands) -> None:
    """Answer the parent until it says quit."""
    loop = MiniMindLoop(job)
    commands.evaluate = lambda: held_out(loop.model, job)
    commands.extra = lambda: {"peak": loop.peak.bytes()}
    while (steps := commands.next()) is not None:
        commands.done(sum(loop.step() for _ in range(steps)))


class MiniMindLoop:
    """Its training loop, with one micro-batch a step."""

    def __init__(self, job: Job) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.peak_rate, self.total_steps = job.learning_rate or LEARNING_RATE, job.total_steps
        texts = documents(job, LENGTH)
        self.batches = padded(texts, documents_per_step(job, texts))
        self.peak = Peak()
        self.model = new_llama(job).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.peak_rate)
        self.precision = job.precision
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=job.precision == "fp16")
        self.steps = 0

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = AUTOCAST.get(self.precision)
        return torch.autocast(self.device.type, dtype) if dtype is not None else nullcontext()

    def step(self) -> int:
        """One optimizer step; its trained tokens."""
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.steps, self.total_steps, self.peak_rate)
        ids = next(self.batches)
        inputs, targets = ids[:, :-1].to(self.device), ids[:, 1:].to(self.device)
        mask = (targets != PAD_ID).float()
        with self._autocast():
            logits = self.model(inputs).logits
            losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            loss = (losses * mask.flatten()).sum() / mask.sum()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return int((ids[:, 1:] != PAD_ID).sum())


def padded(texts: list[list[int]], size: int) -> Iterator[torch.Tensor]:
    """Batches [size, 340] of padded documents, over and over."""
    rows = itertools.cycle(texts)
    while True:
        ids = torch.full((size, LENGTH), PAD_ID)
        for row, text in zip(ids, itertools.islice(rows, size), strict=True):
            row[: len(text)] = torch.tensor(text)
        yield ids
