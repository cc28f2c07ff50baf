"""The least that training this model needs: a bare PyTorch loop over the same packed rows.

Same model, same numerics as our trainer (half weights, fp32 masters and gradients, clipping at 1.0, fused AdamW), no
DeepSpeed, no metrics, no prefetching: all batches are made before the clock starts. fp16 uses torch.amp's scaler.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.llama import held_out, held_out_of
from benchmarks.memory_use import Peak
from benchmarks.workers import Commands, Job
from minimind.data.store.batches import Batch, Batches
from minimind.data.store.store import TokenStore
from minimind.model.transformer import ModelConfig, Transformer
from minimind.training.engine.optimizers import parameter_groups
from minimind.training.engine.schedule import Schedule

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PREPARED = 64  # steps whose rows are kept ready; then they are trained on again


def serve(job: Job, commands: Commands) -> None:
    """Answer the parent until it says quit."""
    loop = BareLoop(job)
    commands.extra = lambda: {"peak": loop.peak.bytes()}
    # CUDA graphs overwrite a loss when the next one is computed, and an evaluation reads all of them at its end.
    yardstick = held_out_of if job.compile_mode == "default" else held_out
    commands.evaluate = lambda: yardstick(loop.model, job)
    while (steps := commands.next()) is not None:
        commands.done(sum(loop.step() for _ in range(steps)))


class BareLoop:
    """Model, masters, optimizer and rows of one job."""

    def __init__(self, job: Job) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.batches = self._rows(job)
        self.peak = Peak()
        config = ModelConfig.preset(job.preset, vocab_size=job.vocab_size)
        wide = Transformer(config, seed=job.seed).to(self.device)
        half = job.precision != "fp32"
        self.model = Transformer(config, seed=job.seed).to(self.device, DTYPES[job.precision]) if half else wide
        self.masters = list(wide.parameters())
        groups = parameter_groups(wide, "AdamW", {"weight_decay": 0.01})
        self.peak_rate = job.peak_rate
        self.optimizer = torch.optim.AdamW(groups, lr=self.peak_rate, betas=(0.9, 0.999), fused=True)
        self.schedule = Schedule("cosine", job.total_steps, -(-job.total_steps // 50), 0.1)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=job.precision == "fp16")
        if job.compile:
            self.model.compile(mode=job.compile_mode)
        self.steps = 0

    @staticmethod
    def _rows(job: Job) -> Iterator[Batch]:
        store = TokenStore.open(job.train)
        batches = Batches(store, job.row_length, job.micro_batch, accumulation=1, world_size=1, seed=job.seed)
        ready = [batches.micro_batches(step, 0)[0] for step in range(min(PREPARED, job.total_steps))]
        while True:
            yield from ready

    def step(self) -> int:
        """One optimizer step; its trained tokens."""
        batch = next(self.batches).to(self.device)
        loss = self.model(batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
        self.scaler.scale(loss / batch.num_trainable).backward()
        self._gradients_to_masters()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak_rate * self.schedule.factor(self.steps)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._masters_to_model()
        self.steps += 1
        return batch.num_trainable

    def _gradients_to_masters(self) -> None:
        for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
            if parameter is not master:
                assert parameter.grad is not None
                master.grad, parameter.grad = parameter.grad.float(), None

    @torch.no_grad()
    def _masters_to_model(self) -> None:
        for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
            if parameter is not master:
                parameter.copy_(master)
        self.optimizer.zero_grad()
