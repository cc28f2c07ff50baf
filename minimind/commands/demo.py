"""`minimind demo`: the whole way from nothing to a chatting model, with the same commands that a person would type.

Contract. Each training command is printed before it runs, so that the demo is also a tutorial. Exit code 0 when at
least `PASS` of the `QUESTIONS` held-out questions are answered right, half of which come second or third in their
conversation, else 1; the exit code of a command that failed is passed on. What the model knows is kept beside its
weights, for whoever talks with it.

The launch scripts and configurations are those of the checkout, or of the installed package: base/shipped.py.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minimind.base.command_lines import typed
from minimind.base.defaults import FINAL
from minimind.base.display import console, say
from minimind.base.errors import UserError
from minimind.base.files import is_directory, subdirectory
from minimind.base.launcher import deepspeed_command, printable
from minimind.base.shipped import from_here
from minimind.training.checkpoint.directory import PRODUCTS, set_aside
from minimind.training.record.console import duration
from minimind.training.record.file import FILE_NAME, read_metrics

QUESTIONS, PASS, SHOWN = 100, 90, 10


def run_demo(directory: Path) -> int:
    """Corpus, tokenizer, pretraining, SFT, questions; the exit code."""
    started = time.monotonic()
    corpus, tokenizer = _prepare(directory)
    pretrained, tuned = directory / "pretrain", directory / "sft"
    for old in (pretrained, tuned):  # an earlier demo's; its final/ must not pass for this one's
        _set_aside(old)
    pretrain = _command("pretrain", corpus / "pretrain.jsonl", corpus / "eval.jsonl", tokenizer, pretrained)
    if code := _run(pretrain, pretrained):
        return code
    sft = _command("sft", corpus / "sft.jsonl", corpus / "sft_eval.jsonl", tokenizer, tuned, model=pretrained)
    if code := _run(sft, tuned):
        return code
    _describe(tuned)
    right = _ask(tuned, corpus)
    _compare(pretrained, corpus)
    _say(f"{right} of {QUESTIONS} right, {duration(time.monotonic() - started)} in all")
    say(
        f"talk with it   {typed('minimind', 'chat', tuned)}\n"
        f"look at it     {typed('minimind', 'report', pretrained, tuned)}"
    )
    return 0 if right >= PASS else 1


def _prepare(directory: Path) -> tuple[Path, Path]:
    """The built-in corpus and a tokenizer trained on it."""
    from minimind.corpus.corpus import VOCABULARY, train_demo_tokenizer, write_demo

    corpus, tokenizer = (subdirectory(directory, name) for name in ("data", "tokenizer"))
    _say(f"writing the built-in corpus to {corpus}")
    files = write_demo(corpus)
    _say(f"training a tokenizer of {VOCABULARY} pieces on it")
    train_demo_tokenizer(files, tokenizer)
    return corpus, tokenizer


def _command(
    script: str, train: Path, held_out: Path, tokenizer: Path, output: Path, model: Path | None = None
) -> list[str]:
    from minimind.base.hardware import choose_config

    config, reason = choose_config(prefix="demo_")
    _say(f"{script} with {config}: {reason}")
    arguments = [
        "--deepspeed_config",
        str(config),
        "--config",
        str(from_here(Path("configs") / f"demo_{script}.yaml")),
        "--train-file",
        str(train),
        "--eval-file",
        str(held_out),
    ]
    arguments += ["--tokenizer", str(tokenizer), "--output-dir", str(output)]
    arguments += ["--model", str(model)] if model else []
    return deepspeed_command(from_here(Path("launch") / f"{script}.py"), arguments)


def _run(command: Sequence[str], run_dir: Path) -> int:
    """Run in the foreground; the exit code, as a shell counts it, and 1 if it was stopped before it was finished."""
    from minimind.base.hardware import detect

    say(f"$ {printable(command)}")
    environment = dict(os.environ)
    if detect().device_type == "cpu":
        environment.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns, twice a command, that it found no GPU
    code = subprocess.run(command, check=False, env=environment).returncode % 256
    if code == 0 and not is_directory(run_dir / FINAL):
        _say(f"{run_dir} was stopped before it was finished")
        return 1
    return code


def _set_aside(run_dir: Path) -> None:
    """Move what a run makes to ``earlier-1`` (2, 3, ...) in its directory. UserError where that is a link."""
    if run_dir.is_symlink():
        raise UserError(f"{run_dir}: a symbolic link, which is not followed; give another --directory")
    if there := [path for name in PRODUCTS if os.path.lexists(path := run_dir / name)]:
        _say(f"an earlier run is now in {set_aside(run_dir, there)}: delete it if it is not needed")


def _ask(run_dir: Path, corpus: Path) -> int:
    """Ask held-out questions; print a sample with the right answers and the score by kind; how many were right."""
    from minimind.commands.questions import answers_table, ask_questions, greedy, read_conversations, score_table
    from minimind.inference.generation import load_model

    conversations = read_conversations(corpus / "sft_eval.jsonl")[:QUESTIONS]
    answers = ask_questions(conversations, greedy(*load_model(run_dir)))
    say(f"{SHOWN} of {len(answers)} held-out questions, and how all were answered:")
    console().print(answers_table(answers[:SHOWN]))
    console().print(score_table(answers))
    return sum(answer.right for answer in answers)


def _describe(run_dir: Path) -> None:
    """Keep with the model what it was made to know."""
    from minimind.corpus.conversations import EXAMPLES, KNOWS
    from minimind.inference.about import About, write_about

    write_about(About(KNOWS, EXAMPLES), subdirectory(run_dir, FINAL))


def _compare(run_dir: Path, corpus: Path) -> None:
    """Print the last held-out loss beside the corpus's own entropy, both in nats per UTF-8 byte."""
    floor = json.loads((corpus / "floor.json").read_text(encoding="utf-8"))["nats_per_byte"]
    reached = nats_per_byte(read_metrics(run_dir / FILE_NAME))
    if reached is None:
        say("held-out loss n/a: the run did not evaluate")
        return
    ratio = reached / floor
    say(f"held-out loss {reached:.4f} nats a byte, entropy floor {floor:.4f}: {ratio:.3f} times the floor")


def nats_per_byte(records: Any) -> float | None:
    """The last evaluation's bits per byte in nats; None without one."""
    bits = [r["bits_per_byte"] for r in records if r["kind"] == "eval" and r.get("bits_per_byte") is not None]
    return bits[-1] * math.log(2) if bits else None


def _say(text: str) -> None:
    say(f"== {text}")
