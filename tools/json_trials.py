"""Every DeepSpeed JSON of a directory through the linter and, if it is accepted, through five real steps: a table.

    python tools/json_trials.py DIRECTORY [--ranks 2] [--steps 5]

Each file is trained by `launch/pretrain.py`'s own command in a process of its own (with ``--ranks``: so many, over
gloo), as on a machine that has fp16 and bf16, with an empty YAML. Every row of the data holds the same document, so
that a loss depends on nothing but the updates before it: neither the batch sizes nor steps that fp16 skips make it
another one. So each run's losses are held against those of fp32 at stage 0 with the same optimizer, clipping and
schedule; half precision may be off by 1%. Steps that fp16's first loss scale costs are added to ``--steps``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minimind.base.display import say
from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.base.launcher import free_port
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.run import load_run_config

MODEL = (
    "model={vocab_size: 400, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 8, intermediate_size: 64}"
)
SETTINGS = [MODEL, "max_seq_length=48", "logging_steps=1", "save_strategy=no", "eval_strategy=no"]
EVERYTHING = Hardware("cpu", fp16=True, bf16=True)
TOLERANCE = {"fp32": 1e-4, "bf16": 0.01, "fp16": 0.01}  # of a loss, relative
PATIENCE = 600  # seconds for one run


@dataclasses.dataclass(frozen=True)
class Trial:
    """``losses``: of the steps that were applied. ``problem``: why it did not run as it must; "" if it did."""

    name: str
    verdict: str  # "runs", "refused" or "wrong"
    problem: str = ""
    losses: tuple[float, ...] = ()
    expected: tuple[float, ...] = ()
    skipped: int = 0

    def line(self) -> str:
        """One row of the table."""
        last = len(self.losses) - 1
        shown = [f"{self.losses[i]:.4f} ({self.expected[i]:.4f})" for i in (0, last)] if self.losses else ["", ""]
        note = self.problem or (f"{self.skipped} steps skipped" if self.skipped else "")
        return f"| {' | '.join([self.name, self.verdict, *shown, note])} |"


class Trials:
    """Runs in ``folder``, with the data made there; fp32's runs are made once for each optimizer and schedule."""

    def __init__(self, folder: Path, ranks: int, steps: int) -> None:
        self.folder, self.ranks, self.steps = folder, ranks, steps
        self.data = _make_data(folder)
        self._references: dict[str, tuple[float, ...]] = {}
        self._count = 0

    def of(self, path: Path, name: str) -> Trial:
        """The trial of one JSON."""
        try:
            resolved = resolve(path, load_run_config(None, SETTINGS), self.ranks, EVERYTHING)
        except UserError as error:
            return Trial(name, "refused", " ".join(str(error).replace(str(path), path.name).split()))
        steps = self.steps + _steps_of_the_scale(resolved)
        try:
            losses, skipped = self._train(path, self.ranks, steps)
            expected = self._reference(resolved, steps)
        except RuntimeError as error:
            return Trial(name, "wrong", str(error))
        return _compared(Trial(name, "runs", "", losses, expected, skipped), resolved.precision, self.steps)

    def _reference(self, resolved: Resolved, steps: int) -> tuple[float, ...]:
        params = {
            key: list(value) if isinstance(value, tuple) else value for key, value in resolved.optimizer.params.items()
        }
        kind = resolved.optimizer.type
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": resolved.gradient_clipping,
            "optimizer": {"type": kind, "params": params | ({"adam_w_mode": False} if kind == "Adam" else {})},
        }
        if resolved.scheduler is not None:
            config["scheduler"] = resolved.scheduler
        key = json.dumps([config, steps], sort_keys=True)
        if key not in self._references:
            path = self.folder / f"reference{len(self._references)}.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            self._references[key] = self._train(path, 1, steps)[0]
        return self._references[key]

    def _train(self, path: Path, ranks: int, steps: int) -> tuple[tuple[float, ...], int]:
        """The losses of the applied steps, and how many were skipped. RuntimeError with the run's last line."""
        self._count += 1
        out, log = self.folder / f"run{self._count}", self.folder / f"log{self._count}"
        words = ["--deepspeed_config", str(path), "--output-dir", str(out), "--emulate-fp16", "--max-steps", str(steps)]
        words += ["--train-file", str(self.data), "--tokenizer", str(self.folder / "tokenizer" / "tokenizer.model")]
        words += [word for setting in SETTINGS for word in ("--set", setting)]
        context, port = get_context("fork"), str(free_port())
        processes = [context.Process(target=_rank, args=(words, log, rank, ranks, port)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE)
            process.kill()
        if any(process.exitcode != 0 for process in processes):
            raise RuntimeError(_last_line(log))
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        trained = [record for record in records if record["kind"] == "train"]
        applied = tuple(record["loss"] for record in trained if record["applied"])
        return applied, len(trained) - len(applied)


def _rank(words: list[str], log: Path, rank: int, ranks: int, port: str) -> None:
    """One rank of a run: `launch/pretrain.py` with these words, its output in ``log``."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT=port, MINIMIND_CACHE=str(log.parent / "cache"))
    os.chdir(log.parent)  # where a stranger's relative output_path ends
    with log.open("a", encoding="utf-8") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    from minimind.training.process.signals import StopRequest
    from minimind.training.run.arguments import parse
    from minimind.training.run.main import run

    try:
        code = run("pretrain", parse("pretrain", words), StopRequest().install())
    except BaseException:  # whatever it is, the table has its last line
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _make_data(folder: Path) -> Path:
    """A tokenizer of 400 pieces, and a file of one document that fills more than half a row, again and again."""
    from minimind.text.tokenizer import train_tokenizer

    draw, words = (
        random.Random(0),
        ["river", "stone", "little", "house", "walks", "到", "山上", "小猫", "看见", "sings"],
    )
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 60))) for _ in range(120)]
    train_tokenizer(texts, folder / "tokenizer", 330)
    path = folder / "same.jsonl"
    line = json.dumps({"text": " ".join(draw.choices(words, k=20))}, ensure_ascii=False)
    path.write_text(f"{line}\n" * 4096, encoding="utf-8")
    return path


def _steps_of_the_scale(resolved: Resolved) -> int:
    """How many steps fp16's first loss scale may cost before one is applied."""
    scale = resolved.config.get("fp16", {})
    patience = scale.get("hysteresis", 2) - 1
    return max(0, scale.get("initial_scale_power", 16) - 15) + patience if resolved.dynamic_scale else 0


def _compared(trial: Trial, precision: str, steps: int) -> Trial:
    """The same trial, or a wrong one: too few updates, or another loss than fp32's."""
    if len(trial.losses) < steps:
        return dataclasses.replace(trial, verdict="wrong", problem=f"only {len(trial.losses)} updates")
    for mine, truth in zip(trial.losses, trial.expected, strict=False):
        off = abs(mine / truth - 1)
        if not off <= TOLERANCE[precision]:  # NaN too
            return dataclasses.replace(trial, verdict="wrong", problem=f"a loss is {off:.1%} off fp32's")
    return trial


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "ended without a word"


def trials(directory: Path, ranks: int, steps: int) -> Iterator[Trial]:
    """One for each JSON at any depth, in the order of their names."""
    import minimind.training.engine.engine
    import minimind.training.run.main  # noqa: F401 - imported once, for all processes

    with tempfile.TemporaryDirectory() as folder:
        made = Trials(Path(folder), ranks, steps)
        for path in sorted(directory.resolve().rglob("*.json")):
            yield made.of(path, str(path.relative_to(directory.resolve())))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(arguments)
    say("| file | verdict | first loss (fp32) | last loss (fp32) | |\n|---|---|---|---|---|")
    verdicts: Counter[str] = Counter()
    for trial in trials(options.directory, options.ranks, options.steps):
        verdicts[trial.verdict] += 1
        say(trial.line())
    say("\n" + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
