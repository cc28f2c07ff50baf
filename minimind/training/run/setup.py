"""From the command line to what a run works on: its data, their order and the plan of its steps. No DeepSpeed.

Rank 0 does what is done once (the built-in corpus, tokenisation); the others wait for it and open the same store. A
host that does not see that store does it once more, by its first rank, from its own files; what all have must have the
keys of rank 0's, which stand for the contents of the files, the tokenizer and the options.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from minimind.base.command_lines import typed
from minimind.base.errors import UserError
from minimind.config.deepspeed import Resolved
from minimind.config.run import RunConfig
from minimind.data.check.overlap import Overlap, find_overlap
from minimind.data.records.conversations import Kind
from minimind.data.records.options import LIMITS, READING, ReadingOptions
from minimind.data.store.batches import Batches
from minimind.data.store.files import MANIFEST
from minimind.data.store.mixture import Part
from minimind.data.store.rooms import default_cache, room
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer
from minimind.training.engine.schedule import Schedule
from minimind.training.process.ranks import Control
from minimind.training.run.cadence import evaluation_remark, evaluation_steps, usual_steps

NO_TOKENIZER = Path("none")  # `--tokenizer none`: say what is missing, and train none


@dataclass(frozen=True)
class Data:
    """Tokenizer and opened stores; ``held_out`` None without an evaluation file, ``parts`` without weights."""

    tokenizer: Tokenizer
    train: TokenStore
    held_out: TokenStore | None
    parts: list[Part] | None = None
    overlap: Overlap | None = None  # of the held-out documents with the training documents
    trained_tokenizer: bool = False  # on the run's own files, since none was given


def prepare_data(control: Control, kind: Kind, config: RunConfig) -> Data:
    """Tokenise on rank 0 (or find the cached store), and on each host that does not see its store; open on every rank.

    Raises UserError, on all ranks, for bad files, for a tokenizer that does not fit the model, and for a host whose
    files are others than rank 0's.
    """
    first, keys = control.first_does(lambda: _with_keys(_prepare(kind, config)))
    places = first if control.rank == 0 or _are_here(first, keys) else None
    if not all(control.gather(places is not None)):
        for turn in (os.environ.get("LOCAL_RANK") == "0", True):  # one a host does it, the others then find it
            places = control.all_do(partial(_also_here, kind, config, places, turn))
    assert places is not None
    trained = bool(config.train_paths) and config.tokenizer is None
    data = replace(control.all_do(lambda: _open(places, keys)), trained_tokenizer=trained)
    loaded = data.tokenizer
    if loaded.vocab_size > config.model.vocab_size:
        raise UserError(
            f"{loaded.path}: {loaded.vocab_size} pieces do not fit the model's vocab_size {config.model.vocab_size}; "
            f"--set model.vocab_size={loaded.vocab_size}"
        )
    if (held_out := data.held_out) is None:
        return data
    return replace(data, overlap=control.first_does(lambda: find_overlap(data.train, held_out, default_cache())))


_Places = tuple[Path, Path | None, Path, list[Part] | None]


def _open(places: _Places, keys: dict[str, str | None]) -> Data:
    """What lies at ``places``. Raises UserError unless it is what the first rank has."""
    data = _opened(places)
    other = [f"{what} ({key}, not {keys[what]})" for what, key in _keys(data).items() if key != keys[what]]
    if other:
        raise UserError(f"not the first rank's {', '.join(other)}: give all hosts the same files")
    return data


def _keys(data: Data) -> dict[str, str | None]:
    """What decides the data: equal keys are equal contents."""
    held_out = None if data.held_out is None else data.held_out.manifest.get("key")
    return {"tokenizer": data.tokenizer.fingerprint, "data": data.train.manifest.get("key"), "held-out data": held_out}


def _with_keys(places: _Places) -> tuple[_Places, dict[str, str | None]]:
    return places, _keys(_opened(places))


def _opened(places: _Places) -> Data:
    train, held_out, tokenizer, parts = places
    return Data(
        Tokenizer.load(tokenizer), TokenStore.open(train), TokenStore.open(held_out) if held_out else None, parts
    )


def _also_here(kind: Kind, config: RunConfig, places: _Places | None, turn: bool) -> _Places | None:
    """``places``, prepared on this host if there are none and it is this rank's turn."""
    return _prepare(kind, config) if places is None and turn else places


def _are_here(places: _Places, keys: dict[str, str | None]) -> bool:
    """Whether this rank finds at the first rank's paths what that one has there."""
    with contextlib.suppress(UserError, OSError):
        return _open(places, keys) is not None
    return False


def _prepare(kind: Kind, config: RunConfig) -> _Places:
    """Stores for training and held-out data, the tokenizer's path and the weighted sources."""
    files, held_out, tokenizer = config.train_paths, list(config.eval_file), config.tokenizer
    if not files and tokenizer != NO_TOKENIZER:
        files, built_in, tokenizer = _built_in(kind, tokenizer)
        held_out = held_out or built_in
    if tokenizer is None and all(map(_can_be_read_twice, files)):
        tokenizer = _own_tokenizer(files, config)
    if tokenizer in (None, NO_TOKENIZER):
        raise UserError(f"no tokenizer: make one with `{_tokenizer_command(config)}")
    loaded = Tokenizer.load(tokenizer)
    parts = _parts(config)
    train = _store(files, loaded, kind, config)
    return train, _store(held_out, loaded, kind, config) if held_out else None, loaded.path, parts


def _can_be_read_twice(path: Path) -> bool:
    """Whether its text can be had for a tokenizer and again for the store: no pipe, and no store already."""
    return str(path) != "-" and not path.is_fifo() and not _is_store(path)


def _own_tokenizer(files: list[Path], config: RunConfig) -> Path:
    """One of the model's vocabulary, trained on the run's files, or found."""
    from minimind.data.store.own_tokenizer import tokenizer_for
    from minimind.data.store.prepare import say_on_stderr

    return tokenizer_for(files, config.model.vocab_size, ReadingOptions.of(config), say_on_stderr)


def _tokenizer_command(config: RunConfig) -> str:
    """The command that trains one on the run's own files, and what to do with it."""
    output = config.output_dir.with_name(f"{config.output_dir.name}-tokenizer")
    words: list[object] = ["minimind", "train-tokenizer", *config.train_paths, "--output", output]
    words += ["--vocab-size", config.model.vocab_size]
    words += ReadingOptions.of(config).words((*READING, *LIMITS))
    return f"{typed(*words)}`, then add --tokenizer {typed(output)}"


def _parts(config: RunConfig) -> list[Part] | None:
    """The weighted sources with their numbers of files; None if there are no weights."""
    from minimind.data.read.sources import expand

    if config.train_weights is None:
        return None

    def num_files(path: Path) -> int:  # a pipe can be read only once, by prepare
        piped = str(path) == "-" or path.is_fifo()
        return 1 if piped else len(expand([path], default_cache() / "spool")[0])

    weighted = zip(config.train_paths, config.train_weights, strict=True)
    return [Part(str(path), weight, num_files(path)) for path, weight in weighted]


def _store(files: list[Path], tokenizer: Tokenizer, kind: Kind, config: RunConfig) -> Path:
    """The store of these files: one named by the user, or made or found by their contents."""
    from minimind.data.store.prepare import prepare

    stores = [path for path in files if _is_store(path)]
    if stores and len(files) > 1:
        raise UserError(f"{stores[0]}: a prepared store can't be mixed with others; name the files it was made of")
    if stores:
        return _finished(stores[0], tokenizer, kind, config)
    return prepare(
        files,
        tokenizer,
        kind=kind,
        max_seq_length=config.max_seq_length,
        reading=ReadingOptions.of(config),
        workers=config.num_workers,
    )


def _is_store(path: Path) -> bool:
    return (path / MANIFEST).is_file() and (path / "tokens.bin").is_file()


def _finished(path: Path, tokenizer: Tokenizer, kind: Kind, config: RunConfig) -> Path:
    """A store that `minimind prepare` made, if it fits this run."""
    store = TokenStore.open(path)
    made = store.manifest.get("max_seq_length", 0)
    problem = None
    if store.manifest.get("tokenizer") != tokenizer.fingerprint:
        problem = f"was made with another tokenizer than {tokenizer.path}"
    elif kind == "sft" and store.manifest.get("chat_template") != tokenizer.template_hash:
        problem = f"was made with another chat template than that of {tokenizer.path}"
    elif store.kind != kind:
        problem = f"was made for {store.kind}, not for {kind}"
    elif kind == "sft" and made > config.max_seq_length:  # packing would cut conversations apart
        problem = f"was made for rows of {made}, longer than max_seq_length {config.max_seq_length}"
    elif given := sorted(config.explicit.intersection(READING)):
        problem = f"is finished, so {', '.join(given)} can't apply to it"
    if problem:
        raise UserError(f"{path}: the store {problem}; prepare the files again, or name them instead")
    return path


def _built_in(kind: Kind, tokenizer: Path | None) -> tuple[list[Path], list[Path], Path]:
    """The built-in corpus and, unless one is given, a tokenizer trained on it."""
    from minimind.corpus.corpus import kept_demo, kept_demo_tokenizer

    directory = room(default_cache(), "demo")
    corpus = kept_demo(directory)
    tokenizer = tokenizer or kept_demo_tokenizer(corpus, directory)
    names = ("pretrain.jsonl", "eval.jsonl") if kind == "pretrain" else ("sft.jsonl", "sft_eval.jsonl")
    return [directory / names[0]], [directory / names[1]], tokenizer


@dataclass(frozen=True)
class Plan:
    """How long the run is and how often it looks up, in optimizer steps.

    ``save_by_time``: ``save_steps`` is only the outer plan, see cadence.py. ``eval_remark``: how often, and why, if
    that was chosen here and is not the usual.
    """

    total_steps: int
    save_steps: int
    eval_steps: int | None
    schedule: Schedule
    save_by_time: bool = False
    eval_remark: str | None = None


def plan_steps(config: RunConfig, batches: Batches, held_out: TokenStore | None) -> Plan:
    """Length, cadences and learning-rate schedule. ``max_steps`` wins over ``num_train_epochs``."""
    total = config.max_steps or math.ceil(config.num_train_epochs * batches.steps_per_epoch)
    schedule = Schedule(config.lr_scheduler_type, total, config.warmup(total), config.min_lr_ratio)
    evaluate, remark = None, None
    if held_out is not None and config.eval_strategy == "epoch":
        evaluate = min(batches.steps_per_epoch, total)
    elif held_out is not None and config.eval_strategy != "no":
        evaluate, remark = _plan_evaluations(config, total, batches.rows_per_step, held_out)
    save = _save_steps(config, total, batches.steps_per_epoch)
    return Plan(
        total,
        save or usual_steps(total),
        evaluate,
        schedule=schedule,
        save_by_time=save is None,
        eval_remark=remark,
    )


def _save_steps(config: RunConfig, total: int, epoch: int) -> int | None:
    """Steps from one checkpoint to the next; None: a clock decides. A stop and the end save in any case."""
    return {"no": total, "epoch": min(epoch, total)}.get(config.save_strategy or "", config.save_steps)


def _plan_evaluations(
    config: RunConfig, total: int, rows_per_step: int, held_out: TokenStore
) -> tuple[int, str | None]:
    """Steps from one evaluation to the next, and what to say of it. Early stopping needs its usual number."""
    if config.eval_steps is not None:
        return config.eval_steps, None
    if config.early_stopping_patience is not None:
        every = usual_steps(total)
    else:
        every = evaluation_steps(total, rows_per_step * config.max_seq_length, held_out.num_predictions)
    return every, evaluation_remark(total, every)


def make_batches(data: Data, config: RunConfig, resolved: Resolved) -> Batches:
    """The order of training: a pure function of seed, step, rank and world size."""
    return Batches(
        data.train,
        row_length=config.max_seq_length,
        micro_batch_size=resolved.micro_batch_size,
        accumulation=resolved.accumulation,
        world_size=resolved.world_size,
        seed=config.seed,
        parts=data.parts,
    )
