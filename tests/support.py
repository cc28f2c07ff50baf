"""Shared by tests that run real DeepSpeed: tiny models, hand-made batches, and ranks that are real processes."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from minimind.base.hardware import Hardware
from minimind.base.launcher import free_port
from minimind.config.run import RunConfig, load_run_config
from minimind.model.transformer import Transformer
from minimind.training.checkpoint.snapshot import HostCopy, Snapshot
from minimind.training.checkpoint.writer import Saver
from tests.waiting import PATIENCE

DS_CONFIGS = Path(__file__).parents[1] / "ds_configs"
CPU = Hardware("cpu", fp16=False, bf16=True)
VOCABULARY, LENGTH = 64, 24
WORDS = ["the", "sea", "is", "calm", "and", "海", "很", "平静", "mountain", "river", "山", "水", "of", "day", "一二三"]
TINY = (
    f"model={{vocab_size: {VOCABULARY}, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 8, intermediate_size: 64}"
)


def tiny_config(*settings: str) -> RunConfig:
    """A RunConfig with a model of some 20,000 parameters."""
    return load_run_config(None, [TINY, *settings])


def tiny_model(seed: int = 0, scale: float = 1.0) -> Transformer:
    """The model of ``tiny_config``; ``scale`` multiplies its matrices (large ones give large gradients)."""
    model = Transformer(tiny_config().model, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale)
    return model


@dataclass(frozen=True)
class RowBatch:
    """A batch as the engine sees it, made by hand."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    document_ids: torch.Tensor

    @property
    def row_sources(self) -> tuple[int, ...]:
        """Rows alternate between two sources, by what they hold, so that it survives being split."""
        return tuple(int(row.sum()) % 2 for row in self.input_ids)

    @property
    def row_tokens(self) -> tuple[int, ...]:
        return tuple((self.labels != -100).sum(1).tolist())

    @property
    def num_trainable(self) -> int:
        return int((self.labels != -100).sum())

    def to(self, device: torch.device) -> RowBatch:
        return RowBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))

    def rows(self, start: int, stop: int) -> RowBatch:
        return RowBatch(*(getattr(self, name)[start:stop] for name in self.__dataclass_fields__))


def random_rows(count: int, seed: int) -> RowBatch:
    """Packed rows with documents of unequal lengths, half of the labels masked, and some rows with no label at all."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, VOCABULARY, (count, LENGTH), generator=generator)
    labels = torch.randint(6, VOCABULARY, (count, LENGTH), generator=generator)
    labels[torch.rand(count, LENGTH, generator=generator) < 0.5] = -100
    labels[1::4] = -100
    documents, positions = torch.empty_like(ids), torch.empty_like(ids)
    for row in range(count):
        cut = int(torch.randint(3, LENGTH - 3, (1,), generator=generator))
        documents[row] = (torch.arange(LENGTH) >= cut).long()
        positions[row] = torch.cat([torch.arange(cut), torch.arange(LENGTH - cut)])
    return RowBatch(ids, labels, positions, documents)


def split(batch: RowBatch, micro: int, rank: int = 0, world: int = 1) -> list[RowBatch]:
    """This rank's micro-batches of ``micro`` rows, as the trainer deals them out."""
    count = batch.input_ids.shape[0]
    starts = range(rank * micro, count, micro * world)
    return [batch.rows(start, start + micro) for start in starts]


def run_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``work(*arguments)`` in ``world`` processes joined over gloo; the results by rank. Raises what a rank raised, and
    for a rank that died without a word."""
    context, port = multiprocessing.get_context("spawn"), str(free_port())
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        context.Process(target=_rank, args=(pipes[rank][1], rank, world, port, work, arguments), daemon=True)
        for rank in range(world)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()  # the rank alone holds it now: its death ends the pipe
    try:
        results = _answers({receiver: rank for rank, (receiver, _) in enumerate(pipes)})
        for process in processes:
            process.join(20)  # their end is no part of a test: what has answered may be killed
    finally:
        for process in processes:
            process.kill()
    return [results[rank] for rank in range(world)]


def _answers(ranks: dict[Connection, int]) -> dict[int, Any]:
    """The results by rank, in the order of their arrival, so that one rank's error is not kept waiting by another."""
    results: dict[int, Any] = {}
    while ranks:
        ready = wait(list(ranks), timeout=PATIENCE)
        assert ready, f"no answer from ranks {sorted(ranks.values())} in {PATIENCE:.0f} s"
        for receiver in ready:
            rank = ranks.pop(receiver)
            try:
                result, error = receiver.recv()
            except EOFError:
                result, error = None, "died without a word"
            if error:
                raise AssertionError(f"rank {rank}:\n{error}")
            results[rank] = pickle.loads(result)
    return results


def spare_deepspeed() -> None:
    """Engines by the hundred, in a process that has started: DeepSpeed collects garbage at the building and the end of
    each, now only what is new; and its CPU optimizers ask cpuinfo, which starts a process, now once."""
    import cpuinfo  # which starts processes, too

    gc.freeze()
    cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)


def _rank(answer: Connection, rank: int, world: int, port: str, work: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=port, OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    try:
        from minimind.training.engine.engine import start_processes

        start_processes(emulate_fp16=True)
        spare_deepspeed()
        # pickled here: torch would share tensors by file descriptors of a process that is about to end
        answer.send((pickle.dumps(work(*arguments)), None))
    except BaseException:  # reported to the parent, which fails the test
        answer.send((None, traceback.format_exc()))


class OneRank:
    """Control of a single rank, without process groups."""

    rank = 0

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def first_does(self, work: Callable[[], Any]) -> Any:
        return work()


class FakeEngine:
    """A rank whose checkpoint has the files of a ZeRO run; the state is in the model's."""

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        return Snapshot(
            {
                "engine/mp_rank_00_model_states.pt": HostCopy({"state": state, "w": torch.ones(1000)}),
                "engine/zero_pp_rank_0_mp_rank_00_optim_states.pt": HostCopy({"m": torch.zeros(500)}),
                "zero_to_fp32.py": b"# a script\n",
            }
        )


def fake_saver(run_dir: Path, keep: int = 10, protected: set[Path] | None = None) -> Saver:
    """A Saver over ``FakeEngine``."""
    return Saver(FakeEngine(), OneRank(), run_dir, keep, protected or set())


def save_steps(run_dir: Path, *steps: int, keep: int = 10, protected: set[Path] | None = None) -> None:
    """One complete fake checkpoint a step."""
    saver = fake_saver(run_dir, keep, protected)
    for step in steps:
        saver.save(step, {"step": step}, {"world_size": 1})
    assert saver.finish() and not saver.poll()
