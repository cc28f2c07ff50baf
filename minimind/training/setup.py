"""From the command line to the parts of a run: data, model, engine. Each phase is one function.

Rank 0 does what is done once (the built-in corpus, tokenisation); the others wait for it and open the same store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from minimind.config import RunConfig
from minimind.data.batches import Batches
from minimind.data.conversations import Kind
from minimind.data.store import TokenStore
from minimind.errors import UserError
from minimind.model import Transformer
from minimind.tokenizer import Tokenizer
from minimind.training.deepspeed_config import Resolved
from minimind.training.engine import Control, Engine
from minimind.training.schedule import Schedule

DEFAULT_SAVES = 10  # checkpoints a run, when save_steps is not given ...
MAX_SAVE_STEPS = 1000  # ... but no further apart than this


@dataclass(frozen=True)
class Data:
    """Tokenizer and opened stores; ``held_out`` None without an evaluation file."""

    tokenizer: Tokenizer
    train: TokenStore
    held_out: TokenStore | None


def prepare_data(control: Control, kind: Kind, config: RunConfig) -> Data:
    """Tokenise on rank 0 (or find the cached store), open on every rank.

    Raises UserError for bad files and for a tokenizer that does not fit the model.
    """
    train, held_out, tokenizer = control.first_does(lambda: _prepare(kind, config))
    loaded = Tokenizer.load(tokenizer)
    if loaded.vocab_size > config.model.vocab_size:
        raise UserError(
            f"{tokenizer}: {loaded.vocab_size} pieces do not fit the model's vocab_size {config.model.vocab_size}; "
            f"--set model.vocab_size={loaded.vocab_size}"
        )
    return Data(loaded, TokenStore.open(train), TokenStore.open(held_out) if held_out else None)


def _prepare(kind: Kind, config: RunConfig) -> tuple[Path, Path | None, Path]:
    """Stores for training and held-out data, and the tokenizer's path."""
    from minimind.data.prepare import prepare

    files, held_out, tokenizer = list(config.train_file), list(config.eval_file), config.tokenizer
    if not files:
        files, held_out, tokenizer = _built_in(kind, tokenizer)
    if tokenizer is None:
        raise UserError(
            "no tokenizer: make one with `minimind train-tokenizer FILE... --output T`, then give --tokenizer T"
        )
    loaded = Tokenizer.load(tokenizer)

    def store(paths: list[Path]) -> Path:
        return prepare(
            paths,
            loaded,
            kind=kind,
            max_seq_length=config.max_seq_length,
            workers=config.num_workers,
            skip_bad=config.skip_bad,
            max_bad_ratio=config.max_bad_ratio,
        )

    return store(files), store(held_out) if held_out else None, loaded.path


def _built_in(kind: Kind, tokenizer: Path | None) -> tuple[list[Path], list[Path], Path]:
    """The built-in corpus and, unless one is given, a tokenizer trained on it."""
    from minimind.data.demo import write_demo
    from minimind.data.prepare import default_cache
    from minimind.data.texts import read_texts
    from minimind.tokenizer import train_tokenizer

    directory = default_cache() / "demo"
    write_demo(directory)
    if tokenizer is None:
        tokenizer = directory / "tokenizer"
        if not (tokenizer / "tokenizer.model").exists():
            train_tokenizer(
                read_texts([directory / "pretrain.jsonl", directory / "sft.jsonl"]), tokenizer, 1024
            )
    names = ("pretrain.jsonl", "eval.jsonl") if kind == "pretrain" else ("sft.jsonl", "sft_eval.jsonl")
    return [directory / names[0]], [directory / names[1]], tokenizer


@dataclass(frozen=True)
class Plan:
    """How long the run is and how often it looks up, in optimizer steps."""

    total_steps: int
    save_steps: int
    eval_steps: int | None
    schedule: Schedule


def plan_steps(config: RunConfig, steps_per_epoch: int, has_held_out: bool) -> Plan:
    """Length, cadences and learning-rate schedule. ``max_steps`` wins over ``num_train_epochs``."""
    total = config.max_steps or math.ceil(config.num_train_epochs * steps_per_epoch)
    every = min(MAX_SAVE_STEPS, math.ceil(total / DEFAULT_SAVES))
    schedule = Schedule(
        config.lr_scheduler_type, total, min(config.warmup(total), total), config.min_lr_ratio
    )
    evaluate = (config.eval_steps or every) if has_held_out else None
    return Plan(total, config.save_steps or every, evaluate, schedule)


def make_batches(store: TokenStore, config: RunConfig, resolved: Resolved) -> Batches:
    """The order of training: a pure function of seed, step, rank and world size."""
    return Batches(
        store,
        row_length=config.max_seq_length,
        micro_batch_size=resolved.micro_batch_size,
        accumulation=resolved.accumulation,
        world_size=resolved.world_size,
        seed=config.seed,
    )


def new_model(config: RunConfig) -> Transformer:
    """A transformer initialised from the seed."""
    model = Transformer(config.model)
    model.init_weights(config.seed)
    return model


def build_engine(model: Transformer, resolved: Resolved, schedule: Schedule, config: RunConfig) -> Engine:
    """The DeepSpeed engine, compiled where that pays."""
    model.gradient_checkpointing = config.gradient_checkpointing
    engine = Engine(model, resolved, schedule.factor)
    on_gpu = engine.device.type == "cuda"
    if config.compile == "on" or (config.compile == "auto" and on_gpu):
        engine.compile()
    return engine
