"""What the small commands do: the parts of the package put together. Nothing is printed here but notes on stderr."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.errors import UserError
from minimind.base.files import read_named, write_bytes_durably, write_durably
from minimind.base.strict.json_text import brief
from minimind.config.model import LARGEST_TABLE
from minimind.data.records.options import BY_CONTENT, ReadingOptions

if TYPE_CHECKING:
    from minimind.base.defaults import GgufDtype, Kind


def train_tokenizer_on(
    files: Sequence[Path], output: Path, vocab_size: int, reading: ReadingOptions = BY_CONTENT
) -> Path:
    """Train a tokenizer on all text in `files`; the path of the model. Bad records as in `prepare`.

    Says on stderr how many records were used, and left out into OUTPUT.rejected.jsonl.
    """
    from minimind.data.records.rejects import Tally
    from minimind.data.records.texts import read_texts
    from minimind.data.store.prepare import say_on_stderr
    from minimind.text.tokenizer import train_tokenizer

    tally = Tally(reading.skip_bad, reading.max_bad_ratio, output.with_name(output.name + ".rejected.jsonl"))
    try:
        made = train_tokenizer(read_texts(files, tally, reading), output, vocab_size)
    except OSError as error:
        raise UserError(f"{tally.quarantine}: can't be written: {error.strerror or error}") from error
    total = tally.total
    say_on_stderr(f"learned from {total.used:,} of {total.records:,} records")
    if total.rejected:
        say_on_stderr(f"  {total.rejected:,} bad records left out, see {tally.quarantine}")
    return made


def evaluate_file(
    path: Path,
    files: Sequence[Path],
    kind: Kind | None,
    max_seq_length: int,
    batch_size: int,
    *,
    reading: ReadingOptions = BY_CONTENT,
    tokenizer_path: Path | None = None,
) -> dict[str, Any]:
    """Loss (nats per trainable token), perplexity and bits per byte of the model at `path` on `files`.

    `kind` None goes by the first record; `tokenizer_path` None takes the one beside the model. Raises UserError for a
    missing model or a bad file.
    """
    import torch

    from minimind.data.store.batches import SequentialBatches
    from minimind.data.store.prepare import prepare
    from minimind.data.store.store import TokenStore
    from minimind.inference.generation import load_model
    from minimind.training.run.evaluation import evaluate
    from minimind.training.values import perplexity

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = load_model(path, str(device), tokenizer=tokenizer_path)
    store = TokenStore.open(prepare(files, tokenizer, kind=kind, max_seq_length=max_seq_length, reading=reading))
    batches = SequentialBatches(store, max_seq_length, batch_size, rank=0, world_size=1)
    result = evaluate(model, batches, device, 0, store.num_bytes if store.kind == "pretrain" else None)
    return {
        "loss": round(result.loss, 6),
        "perplexity": round(perplexity(result.loss), 4),
        "bits_per_byte": "n/a" if result.bits_per_byte is None else round(result.bits_per_byte, 6),
        "tokens": result.num_tokens,
    }


def export_hf(
    path: Path,
    output: Path,
    dtype: GgufDtype | None = None,
    tokenizer_path: Path | None = None,
    licence: str | None = None,
) -> Path:
    """Write the model at `path` in Hugging Face layout, with a model card; returns the directory. What it
    was made to know, where that is kept with it, goes with it.

    `dtype`: of the weights, None as they are loaded (fp32 on a CPU). Raises UserError if there is no model, and for a
    weight too large for f16.
    """
    from minimind.commands.facts import card_of
    from minimind.inference.about import about_model, write_about
    from minimind.inference.generation import load_model
    from minimind.interop.gguf_types import PLAIN, cast
    from minimind.interop.huggingface import save_pretrained

    if dtype is not None and dtype.upper() not in PLAIN:
        raise UserError(f"--dtype {dtype} is for --format gguf: hf has f32, f16 and bf16")
    model, tokenizer = load_model(path, "cpu", tokenizer=tokenizer_path)
    weights = model.state_dict()
    if dtype is not None:
        weights = {name: cast(name, value, PLAIN[dtype.upper()]) for name, value in weights.items()}
    save_pretrained(weights, model.config, tokenizer, output, card_of(path, licence))
    if about := about_model(path):
        write_about(about, output)
    return output


def export_model(
    path: Path,
    output: Path,
    format: str,
    dtype: GgufDtype | None,
    tokenizer_path: Path | None = None,
    *,
    licence: str | None = None,
) -> Path:
    """Write the model at `path` as `format` (of `EXPORTERS`); what was written: a directory for hf, else a file.

    `output` is a directory, or for pth and gguf also a file name with that suffix. `dtype`: of the weights; None is f16
    in a gguf. `licence`: for the model card. Raises UserError for a path without a model, and for what the format can't
    hold.
    """
    if format not in EXPORTERS:
        raise UserError(f"--format {format}: not one of {', '.join(EXPORTERS)}")
    if dtype is not None and format == "pth":
        raise UserError("--dtype is for --format hf and gguf: MiniMind's .pth is f16")
    if licence is None:
        return EXPORTERS[format](path, output, dtype, tokenizer_path)
    if format != "hf":
        raise UserError("--license is for --format hf: it goes into the model card")
    return export_hf(path, output, dtype, tokenizer_path, licence)


def _file(output: Path, suffix: str) -> Path:
    return output if output.suffix == suffix else output / f"model{suffix}"


def export_pth(path: Path, file: Path, tokenizer_path: Path | None = None) -> Path:
    """Write MiniMind's own weight file, and beside it the tokenizer, which loading it here needs."""
    from minimind.inference.generation import load_model
    from minimind.interop.upstream import check_exportable, save_pth

    model, tokenizer = load_model(path, "cpu", tokenizer=tokenizer_path)
    check_exportable(model.state_dict(), model.config, path)
    beside = {_directory_of(file) / name: content for name, content in tokenizer.files.items()}
    for place, content in beside.items():
        if os.path.lexists(place) and read_named(place) != content:
            raise UserError(f"{place}: another tokenizer is there already: give another --output")
    save_pth(model.state_dict(), model.config, file)
    for place, content in beside.items():
        write_bytes_durably(place, content)
    return file


def export_gguf(path: Path, file: Path, dtype: GgufDtype, tokenizer_path: Path | None = None) -> Path:
    """Write a GGUF file for llama.cpp, and beside it a Modelfile for Ollama."""
    from minimind.data.store.prepare import say_on_stderr
    from minimind.inference.generation import load_model
    from minimind.inference.server import model_name
    from minimind.interop.gguf import save_gguf
    from minimind.interop.model_card import may_write
    from minimind.interop.modelfile import FILE_NAME as MODELFILE
    from minimind.interop.modelfile import MARK, modelfile

    model, tokenizer = load_model(path, "cpu", tokenizer=tokenizer_path)
    place = _directory_of(file) / MODELFILE
    save_gguf(model.state_dict(), model.config, tokenizer, path=file, dtype=dtype, name=model_name(path))
    if may_write(place, MARK):
        write_durably(place, modelfile(file.name, model.config, tokenizer))
    else:
        say_on_stderr(f"{place}: not written by an export, so it stays as it is")
    return file


# What `minimind export --format` takes: (model, output, dtype or None, tokenizer or None) -> what was written
EXPORTERS: dict[str, Callable[[Path, Path, Any, Path | None], Path]] = {
    "hf": export_hf,
    "pth": lambda path, output, _, tokenizer: export_pth(path, _file(output, ".pth"), tokenizer),
    "gguf": lambda path, output, dtype, tokenizer: export_gguf(path, _file(output, ".gguf"), dtype or "f16", tokenizer),
}


def _directory_of(file: Path) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{file.parent}: can't be made: {error.strerror}") from error
    return file.parent


def samples_of_step(run_dir: Path, step: int) -> list[str]:
    """The `file:line` of each document that optimizer step `step` (1-based) of a run trained on, sorted.

    Computed again from the run's own record in metrics.jsonl: store, seed and rows a step decide the order of data.
    Raises UserError for a directory that holds no such record, and when the store is gone.
    """
    from minimind.commands.page.records import load_records
    from minimind.data.store.batches import Batches
    from minimind.data.store.mixture import Part
    from minimind.data.store.store import TokenStore
    from minimind.training.health.ladder import FILE_NAME, data_step, read_rollbacks

    about = load_records(run_dir).about
    _refuse_missing(run_dir, about, ("store", "seed"))
    if not about["store"] or not os.path.isdir(about["store"]):  # noqa: PTH112 (Path's raises for a name too long)
        raise UserError(f"{run_dir}: the store is gone ({brief(about['store'])}): prepare the same files again")
    _refuse_missing(run_dir, about, ("total_steps", "micro_batch_size", "accumulation", "world_size", "row_length"))
    if about["row_length"] > LARGEST_TABLE:
        raise UserError(f"{run_dir}: metrics.jsonl says rows of {about['row_length']:,} tokens, which no run has")
    if step > about["total_steps"]:
        raise UserError(f"{run_dir}: the run has {about['total_steps']} steps, not {step}")
    store = TokenStore.open(Path(about["store"]))
    # How the rows are split over ranks and micro-batches does not matter: a step's rows are one slice of the epoch.
    rows = about["micro_batch_size"] * about["accumulation"] * about["world_size"]
    batches = Batches(
        store,
        row_length=about["row_length"],
        micro_batch_size=rows,
        accumulation=1,
        world_size=1,
        seed=about["seed"],
        parts=[Part(part["path"], part["weight"], part["files"]) for part in about.get("sources") or []],
    )
    try:
        rollbacks = read_rollbacks(run_dir, about["total_steps"])
    except (OSError, ValueError) as error:
        raise UserError(f"{run_dir / FILE_NAME}: can't be read ({error})") from error
    documents = {document for document, _, _ in batches.documents(data_step(step - 1, rollbacks))}
    return [f"{name}:{line}" for name, line in sorted(store.source(document) for document in documents)]


def _refuse_missing(run_dir: Path, about: Mapping[str, Any], names: Sequence[str]) -> None:
    missing = [name for name in names if about.get(name) is None]
    if missing:
        raise UserError(f"{run_dir}: metrics.jsonl does not say which {' and '.join(missing)} the run used")
