"""Command-line options that the benchmarks share, and jobs from them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.corpus import DEFAULT_DATA, Corpus, make_corpus
from benchmarks.workers import ROOT, Job, WorkerError
from minimind.base.errors import UserError
from minimind.base.hardware import detect
from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config
from minimind.model.transformer import PRESETS


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the shared options; ``description`` is the script's docstring."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    found.add_argument("--data", type=Path, default=DEFAULT_DATA, help="JSON Lines file or a folder of them")
    found.add_argument("--preset", default="26m", choices=PRESETS)
    found.add_argument("--vocab-size", type=positive, default=6400, help="a small text needs a small one")
    found.add_argument("--row-length", type=positive, default=512)
    found.add_argument("--threads", type=positive, default=2, help="threads of each side")
    found.add_argument("--json", type=Path, help="write the figures here")
    return found


def positive(text: str) -> int:
    """argparse type: an integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def corpus(options: argparse.Namespace) -> Corpus:
    """The corpus that the options name."""
    return make_corpus(options.data, options.vocab_size, options.row_length)


def job(options: argparse.Namespace, text: Corpus, side: str, **changes: Any) -> Job:
    """A job on this corpus with the shared options; ``changes`` replace fields of Job.

    Its precision is that of the DeepSpeed JSON unless ``changes`` name one. Raises UserError for a bad JSON.
    """
    if "precision" not in changes:
        changes["precision"] = precision_of(changes.get("deepspeed_config", Job.deepspeed_config), changes)
    shared = {
        "preset": options.preset,
        "vocab_size": options.vocab_size,
        "row_length": options.row_length,
        "threads": options.threads,
        "tokenizer": str(text.tokenizer),
        "train": str(text.train),
        "held_out": str(text.held_out),
    }
    return Job(side=side, **{**shared, **changes})


def precision_of(deepspeed_config: str, changes: Mapping[str, Any]) -> str:
    """What our trainer would compute in with this JSON, on this machine."""
    values = {"per_device_train_batch_size": changes.get("micro_batch", Job.micro_batch), **changes.get("settings", {})}
    config = load_run_config(None, [], values)
    return resolve(ROOT / deepspeed_config, config, 1, detect(), config.emulate_fp16).precision


def exit_cleanly(main: Callable[[], None]) -> None:
    """Run ``main``; wrong use is one line and code 2, a side that died its log's end and code 1."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except WorkerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
