"""From the command to the end of the first step, by part.

    python benchmarks/startup.py [--rounds 3] [--json OUT] [-- options of launch/pretrain.py]

Each round is a fresh process that runs the real command and is ended after its first step. The first round, which
tokenises and fills caches, is not counted; medians of the others are printed: seconds by the clock, and of CPU, which
other programs on the machine disturb less. "To the first step" is the sum of all parts but that step. ``minimind
--help`` is timed too. Options default to the shipped JSON for this machine and the 26M model on the built-in corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Seconds = tuple[float, float]  # by the clock, of CPU
STARTED = "MINIMIND_BENCHMARK_STARTED"  # when the parent started this process, by time.time()
PARTS = {  # part -> (module, function) that it is the time of
    "configuration": [("main", "make_task")],
    "processes": [("main", "start_processes"), ("main", "Control")],
    "data": [("setup", "prepare_data"), ("setup", "make_batches")],
    "model": [("task", "new_model")],
    "engine": [("builder", "build_engine")],
    "run files": [("main", "open_directory"), ("main", "open_metrics")],
    "speed estimate": [("summary", "measure_tokens_per_second")],
    "first step": [("loop", "train_step")],
}


def child(arguments: list[str]) -> None:
    """The command itself, with its parts timed; prints them as one JSON line after the first step."""
    seconds = {"interpreter": (time.time() - float(os.environ[STARTED]), time.process_time())}
    start = now()
    from minimind.training.run import builder, loop, main, setup, summary, task

    add(seconds, "imports", start)
    modules = {"main": main, "task": task, "setup": setup, "builder": builder, "summary": summary, "loop": loop}
    for part, functions in PARTS.items():
        for module, function in functions:
            time_calls(modules[module], function, part, seconds)
    main.main("pretrain", arguments)


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def add(seconds: dict[str, Seconds], part: str, start: Seconds) -> None:
    """Count the time since ``start`` for ``part``."""
    (wall, cpu), (wall_before, cpu_before) = now(), seconds.get(part, (0.0, 0.0))
    seconds[part] = wall_before + wall - start[0], cpu_before + cpu - start[1]


def time_calls(module: Any, function: str, part: str, seconds: dict[str, Seconds]) -> None:
    """Replace a function by one that adds its time to ``part``; the first step ends the process."""
    original = getattr(module, function)

    def timed(*arguments: Any, **options: Any) -> Any:
        start = now()
        result = original(*arguments, **options)
        add(seconds, part, start)
        if part == "first step":
            report(seconds)
        return result

    setattr(module, function, timed)


def report(seconds: dict[str, Seconds]) -> None:
    """Print the parts, what is left and the sums as one JSON line, and end the process as it stands."""
    total = time.time() - float(os.environ[STARTED]), time.process_time()
    first = seconds["first step"]
    seconds["other"] = tuple(total[i] - sum(part[i] for part in seconds.values()) for i in (0, 1))  # type: ignore[assignment]
    seconds["to the first step"] = total[0] - first[0], total[1] - first[1]
    seconds["with the first step"] = total
    print(json.dumps(seconds), flush=True)
    os._exit(0)


def one_start(options: list[str]) -> dict[str, Seconds]:
    """Seconds by part of one fresh process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--child", *options, "--set", f"output_dir={directory}/run"]
        environment = os.environ | {STARTED: str(time.time())}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"interpreter"')]
    if not lines:
        raise SystemExit(f"the command ended before its first step:\n{done.stdout}{done.stderr}")
    return {part: (wall, cpu) for part, (wall, cpu) in json.loads(lines[-1]).items()}


def help_seconds() -> Seconds:
    """``minimind --help`` as a fresh process."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "minimind.cli", "--help"], check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def default_options() -> list[str]:
    from minimind.base.hardware import choose_config

    return ["--deepspeed_config", str(choose_config()[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("options", nargs="*", help="options of launch/pretrain.py, after --")
    arguments = parser.parse_args()
    options = arguments.options or default_options()
    one_start(options)
    rounds = [one_start(options) for _ in range(arguments.rounds)]
    rounds = [one | {"minimind --help": help_seconds()} for one in rounds]
    medians = {part: [statistics.median(one[part][i] for one in rounds) for i in (0, 1)] for part in rounds[0]}
    print(f"{'':20} {'clock':>8} {'CPU':>8}")
    for part, (wall, cpu) in medians.items():
        print(f"{part:20} {wall:6.2f} s {cpu:6.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(medians, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
