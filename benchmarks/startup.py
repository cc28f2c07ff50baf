"""From the command to the end of the first step, by part.

    python benchmarks/startup.py [--rounds 3] [--json OUT] [-- options of launch/pretrain.py]

Each round is a fresh process that runs the real command and is ended after its first step. The first round, which
tokenises and fills caches, is not counted; medians of the others are printed, in seconds of wall time. ``minimind
--help`` is timed too. Options default to the shipped JSON for this machine and the 26M model on the built-in corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STARTED = "MINIMIND_BENCHMARK_STARTED"  # when the parent started this process, by time.time()
PARTS = {  # part -> (module, function) that it is the time of
    "configuration": [("main", "configure"), ("main", "detect"), ("main", "resolve_json")],
    "processes": [("main", "start_processes"), ("main", "Control")],
    "data": [("setup", "prepare_data"), ("setup", "make_batches")],
    "model": [("setup", "new_model")],
    "engine": [("setup", "build_engine")],
    "run files": [("main", "write_run_files"), ("main", "open_metrics")],
    "speed estimate": [("summary", "measure_tokens_per_second")],
    "first step": [("loop", "train_step")],
}  # fmt: skip


def child(arguments: list[str]) -> None:
    """The command itself, with its parts timed; prints them as one JSON line after the first step."""
    seconds = {"interpreter": time.time() - float(os.environ[STARTED])}
    start = time.perf_counter()
    from minimind.training import loop, main, setup, summary

    seconds["imports"] = time.perf_counter() - start
    modules = {"main": main, "setup": setup, "summary": summary, "loop": loop}
    for part, functions in PARTS.items():
        for module, function in functions:
            time_calls(modules[module], function, part, seconds)
    main.main("pretrain", arguments)


def time_calls(module: Any, function: str, part: str, seconds: dict[str, float]) -> None:
    """Replace a function by one that adds its time to ``part``; the first step ends the process."""
    original = getattr(module, function)

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = original(*arguments, **options)
        seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - start
        if part == "first step":
            total = time.time() - float(os.environ[STARTED])
            print(json.dumps(seconds | {"other": total - sum(seconds.values()), "total": total}), flush=True)
            os._exit(0)
        return result

    setattr(module, function, timed)


def one_start(options: list[str]) -> dict[str, float]:
    """Seconds by part of one fresh process."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--child", *options, "--set", f"output_dir={directory}/run"]
        environment = os.environ | {STARTED: str(time.time())}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"interpreter"')]
    if not lines:
        raise SystemExit(f"the command ended before its first step:\n{done.stdout}{done.stderr}")
    return dict(json.loads(lines[-1]))


def help_seconds() -> float:
    """``minimind --help``, wall time of a fresh process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "minimind.cli", "--help"], check=True, capture_output=True)
    return time.perf_counter() - start


def default_options() -> list[str]:
    from minimind.hardware import choose_config

    return ["--deepspeed_config", str(choose_config()[0])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("options", nargs="*", help="options of launch/pretrain.py, after --")
    arguments = parser.parse_args()
    options = arguments.options or default_options()
    one_start(options)
    rounds = [one_start(options) for _ in range(arguments.rounds)]
    medians = {part: statistics.median(one[part] for one in rounds) for part in rounds[0]}
    medians["minimind --help"] = statistics.median(help_seconds() for _ in range(arguments.rounds))
    for part, value in medians.items():
        print(f"{part:16} {value:6.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(medians, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
