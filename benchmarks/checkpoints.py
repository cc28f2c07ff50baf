"""How long a save holds training up: in the background, as this trainer saves, and at once, side by side.

    python benchmarks/checkpoints.py FILE.jsonl... [--deepspeed-config ds_configs/bf16.json] [--preset 26m]
        [--rounds 3] [--steps 4] [--set KEY=VALUE] [--json]

A real engine trains on the files' text. Each round takes, in turns in one process: steps alone; a save that is
waited for (what every save was before); a save in the background and the steps that run while it is written. Printed
are medians: what training waits for, its share of the steps between two saves at the default cadence for a run of one
epoch over these files, and how much slower steps are beside the writer, which shares their processor cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from minimind.base.hardware import detect
from minimind.config.deepspeed import resolve
from minimind.config.run import RunConfig, load_run_config
from minimind.text.tokenizer import train_tokenizer
from minimind.training.checkpoint.writer import Saver
from minimind.training.engine.engine import Engine, start_processes
from minimind.training.engine.step import train_step
from minimind.training.process.ranks import Control
from minimind.training.run import builder, setup

VOCABULARY = 6400
DS_CONFIG = Path(__file__).parents[1] / "ds_configs" / "bf16.json"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time saves in the background against saves at once.")
    parser.add_argument("files", nargs="+", type=Path, help="JSON Lines with a text field")
    parser.add_argument("--deepspeed-config", type=Path, default=DS_CONFIG)
    parser.add_argument("--preset", default="26m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="steps timed alone in a round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(arguments, Path(scratch))
    print(json.dumps(figures) if arguments.json else "\n".join(lines(figures)))


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Medians over the rounds, in seconds; the first save, which is not timed, warms up."""
    tokenizer = train_tokenizer(_texts(arguments.files), scratch / "tokenizer", VOCABULARY)
    settings = [f"model={arguments.preset}", f"tokenizer={tokenizer}", *arguments.set]
    config = load_run_config(None, settings).model_copy(update={"train_file": arguments.files})
    engine, step, save_steps = _engine(config, arguments.deepspeed_config)
    saver = Saver(engine, Control("saving"), scratch, keep=1, protected=set())
    step()
    save = _numbered(saver)
    _timed(lambda: (save(), saver.finish()))
    times: dict[str, list[float]] = {"step": [], "at_once": [], "stall": [], "step_beside": []}
    for _ in range(arguments.rounds):
        times["step"] += [_timed(step) for _ in range(arguments.steps)]
        times["at_once"].append(_timed(lambda: (save(), saver.finish())))
        times["stall"].append(_timed(save))
        while saver.writing:
            times["step_beside"].append(_timed(step))
        if not saver.finish():
            raise SystemExit(saver.poll()[0].message)
    figures = {name: median(found) for name, found in times.items() if found}
    interval = save_steps * figures["step"]
    files = scratch.glob("checkpoints/*/**/*")
    return {
        **figures,
        "save_steps": save_steps,
        "stall_share_of_interval": figures["stall"] / interval,
        "at_once_share_of_interval": figures["at_once"] / interval,
        "checkpoint_bytes": sum(path.stat().st_size for path in files if path.is_file()),
        "raw": times,
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures for a person."""
    size, step = figures["checkpoint_bytes"] / 1e6, figures["step"]
    beside = figures.get("step_beside", step)
    return [
        f"checkpoint {size:.0f} MB, step {step:.2f} s, planned cadence {figures['save_steps']} steps",
        f"save at once         {figures['at_once']:.2f} s, {figures['at_once_share_of_interval']:.2%} of an interval",
        f"save in background   {figures['stall']:.2f} s, {figures['stall_share_of_interval']:.2%} of an interval",
        f"training waits {figures['at_once'] / figures['stall']:.1f} times shorter; "
        f"a step beside the writer takes {beside / step:.2f} of one alone",
    ]


def _engine(config: RunConfig, source: Path) -> tuple[Engine, Callable[[], object], int]:
    """An engine, what runs its next step, and the steps between two saves."""
    start_processes(config.emulate_fp16)
    hardware = detect()
    resolved = resolve(source, config, 1, hardware, num_parameters=config.model.num_parameters())
    data = setup.prepare_data(Control(), "pretrain", config)
    batches = setup.make_batches(data, config, resolved)
    plan = setup.plan_steps(config, batches, held_out=None)
    engine = builder.build_engine(
        builder.new_model(config, resolved), resolved, plan.schedule.factor, config, plan.total_steps
    )
    steps = iter(range(plan.total_steps))
    step = lambda: train_step(engine, list(batches.micro_batches(next(steps), 0)))  # noqa: E731
    return engine, step, plan.save_steps


def _numbered(saver: Saver) -> Callable[[], None]:
    """Save under a new number at each call."""
    numbers = iter(range(1, 10**6))
    return lambda: saver.save(next(numbers), {"progress": {}}, {})


def _texts(files: Sequence[Path]) -> list[str]:
    return [json.loads(line)["text"] for file in files for line in file.open(encoding="utf-8", newline="\n")]


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
