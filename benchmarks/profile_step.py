"""Where one training step's time goes, next to the time of its matrix products alone.

    python benchmarks/profile_step.py [--deepspeed_config ds_configs/bf16.json] [--config run.yaml]
        [--set KEY=VALUE ...] [--train-file FILE] [--steps 8] [--operators] [--json OUT]

The real path: prepared store, ``Batches``, ``train_step``, the DeepSpeed engine, ``Recorder``; the batch is made on the
step's path here, to be timed (a run makes it ahead, in a thread). Parts are medians over ``--steps`` steps after two
that warm up. The roofline is this machine's own: each product of the step (forward, input gradient, weight gradient)
in its shape and dtype, timed alone. What the table calls the share reached is the products' time over the step's.
``--operators`` adds torch's table of the slowest operators. Weakness: attention's products are not in the roofline
(they are 3% of the FLOPs at 512 tokens), so their time counts as overhead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from minimind.base.hardware import choose_config, detect
from minimind.config.deepspeed import resolve
from minimind.config.run import RunConfig, load_run_config
from minimind.data.store.batches import Batch, Batches
from minimind.model import transformer as model_module
from minimind.training.engine.engine import Engine, start_processes
from minimind.training.engine.step import train_step
from minimind.training.process.ranks import Control
from minimind.training.record.recorder import Progress, Recorder
from minimind.training.run import builder, setup

WARM_UP = 2
PARTS = ("data", "forward: body", "forward: loss", "forward: DeepSpeed", "backward", "update", "logging", "other")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Timers:
    """Seconds by part of the current step; ``wrap`` makes a function count for a part."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu, self.seconds = device.type == "cuda", defaultdict[str, float](float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = self._now()
        yield
        self.seconds[name] += self._now() - start

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        original = getattr(owner, attribute)

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.part(name):
                return original(*arguments, **options)

        setattr(owner, attribute, timed)

    def _now(self) -> float:
        if self.on_gpu:  # a profile may wait for the device, a run may not
            torch.cuda.synchronize()
        return time.perf_counter()


def build(options: argparse.Namespace) -> tuple[RunConfig, Engine, Batches]:
    """A run's parts, as ``training/run/main.py`` puts them together."""
    files = {"train_file": options.train_file} if options.train_file else {}
    config = load_run_config(options.config, options.set, files)
    hardware = detect()
    resolved = resolve(options.deepspeed_config or choose_config(hardware)[0], config, 1, hardware)
    start_processes(config.emulate_fp16)
    data = setup.prepare_data(Control(), "pretrain", config)
    batches = setup.make_batches(data, config, resolved)
    engine = builder.build_engine(
        builder.new_model(config, resolved), resolved, lambda step: 1.0, config, total_steps=10**6
    )
    return config, engine, batches


def attach(timers: Timers, engine: Engine) -> None:
    """Time the parts of a step where the run itself calls them."""
    timers.wrap(engine.module, "hidden_states", "forward: body")
    timers.wrap(model_module, "summed_cross_entropy", "forward: loss")
    timers.wrap(engine, "forward", "forward: all")
    timers.wrap(engine, "backward", "backward")
    timers.wrap(engine, "update", "update")


def profile_steps(engine: Engine, batches: Batches, timers: Timers, steps: int) -> list[dict[str, float]]:
    """Seconds by part, one dictionary a step."""
    recorder = Recorder(lambda metrics: None, engine.sum_over_ranks, batches.steps_per_epoch)
    progress, profiles = Progress(), []
    for step in range(WARM_UP + steps):
        timers.seconds.clear()
        with timers.part("step"):
            with timers.part("data"):
                micro_batches: list[Batch] = batches.micro_batches(step, 0)
            result = train_step(engine, micro_batches)
            with timers.part("logging"):
                progress.advance(result)
                recorder.add(result, progress)
                recorder.flush()
        profiles.append(by_part(dict(timers.seconds)))
    return profiles[WARM_UP:]


def by_part(seconds: dict[str, float]) -> dict[str, float]:
    """Parts that add up to the step."""
    parts = {name: seconds.get(name, 0.0) for name in PARTS} | {"step": seconds["step"]}
    parts["forward: DeepSpeed"] = seconds["forward: all"] - parts["forward: body"] - parts["forward: loss"]
    parts["other"] = seconds["step"] - sum(parts[name] for name in PARTS if name != "other")
    return parts


def products(config: RunConfig, tokens: int) -> dict[str, tuple[int, int, int]]:
    """The step's weight shapes: name -> (inputs, outputs, how many of them), for ``tokens`` rows each."""
    model = config.model
    queries, keys = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    hidden, middle, layers = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    return {
        "q": (hidden, queries, layers),
        "k, v": (hidden, keys, 2 * layers),
        "o": (queries, hidden, layers),
        "gate, up": (hidden, middle, 2 * layers),
        "down": (middle, hidden, layers),
        "head": (hidden, model.vocab_size, 1),
    }


def best_seconds(work: Callable[[], Any], device: torch.device, rounds: int = 4) -> float:
    """The fastest of some rounds: a busy machine can only make one slower."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def product_seconds(tokens: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> float:
    """One weight's three products, each timed alone."""
    x = torch.randn(tokens, inputs, device=device).to(dtype)
    weight = torch.randn(outputs, inputs, device=device).to(dtype)
    grad = torch.randn(tokens, outputs, device=device).to(dtype)
    forms: list[Callable[[], Any]] = [lambda: x @ weight.t(), lambda: grad @ weight, lambda: grad.t() @ x]
    return sum(best_seconds(form, device) for form in forms)


def roofline(config: RunConfig, tokens: int, dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    """Each kind of product: GFLOP, seconds and GFLOP/s of all of a micro-batch's products of that kind."""
    table = []
    for name, (inputs, outputs, count) in products(config, tokens).items():
        gflop = 6e-9 * tokens * inputs * outputs * count
        seconds = count * product_seconds(tokens, inputs, outputs, dtype, device)
        table.append({"name": name, "gflop": gflop, "seconds": seconds, "gflop_per_second": gflop / seconds})
    return table


def slowest_operators(engine: Engine, batches: Batches) -> str:
    """torch's own table for one more step."""
    with torch.profiler.profile(record_shapes=False) as profiler:
        train_step(engine, batches.micro_batches(0, 0))
    key = "self_cuda_time_total" if engine.device.type == "cuda" else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=key, row_limit=30, max_name_column_width=50))


def show(report: dict[str, Any]) -> None:
    """The two tables and the share."""
    step = report["step_seconds"]
    print(f"{report['device']}, {report['threads']} threads, {report['precision']}, {report['shape']}")
    for name, seconds in report["parts"].items():
        print(f"  {name:20} {seconds * 1e3:9.1f} ms {100 * seconds / step:6.1f}%")
    print(f"  {'step':20} {step * 1e3:9.1f} ms   {report['tokens_per_second']:,.0f} tokens/s")
    print("the step's products alone (forward, input gradient, weight gradient)")
    for row in report["products"]:
        print(f"  {row['name']:20} {row['seconds'] * 1e3:9.1f} ms {row['gflop_per_second']:8.0f} GFLOP/s")
    print(f"  {'all':20} {report['product_seconds'] * 1e3:9.1f} ms   share of the step {report['share']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepspeed_config", type=Path, help="default: the shipped JSON for this machine")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--train-file", action="append", help="default: the built-in corpus")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        options.set.append(f"output_dir={directory}")
        report = measure(options)
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is printed and written."""
    config, engine, batches = build(options)
    timers = Timers(engine.device)
    attach(timers, engine)
    profiles = profile_steps(engine, batches, timers, options.steps)
    if options.operators:
        print(slowest_operators(engine, batches))
    rows, micro_batches = engine.resolved.micro_batch_size, engine.resolved.accumulation
    tokens = rows * config.max_seq_length
    alone = roofline(config, tokens, DTYPES[engine.resolved.precision], engine.device)
    product_seconds_ = micro_batches * sum(row["seconds"] for row in alone)
    step = statistics.median(profile["step"] for profile in profiles)
    return {
        "device": detect().describe(),
        "threads": torch.get_num_threads(),
        "precision": engine.resolved.precision,
        "shape": f"{micro_batches} x {rows} x {config.max_seq_length} tokens a step",
        "parts": {name: statistics.median(profile[name] for profile in profiles) for name in PARTS},
        "step_seconds": step,
        "tokens_per_second": micro_batches * tokens / step,
        "products": alone,
        "product_seconds": product_seconds_,
        "share": product_seconds_ / step,
    }


if __name__ == "__main__":
    main()
