"""One command for one GPU: speed, MFU, memory and time to a loss, for every precision and ZeRO form.

    python benchmarks/gpu.py [--data F] [--budget 450] [--only "bf16,bare bf16"] [--json OUT]

Forms (gpu_forms.py): fp16, bf16, fp32, ZeRO-2, ZeRO-2 with offload and Muon through our trainer, compiled and eager,
bf16 also with attention by dense mask and with eight rows a step; the bare PyTorch loop (side_bare.py), once with CUDA
graphs, and Hugging Face Trainer (side_huggingface.py) beside them. Processes start at once, so that imports and
compilation overlap; then one works at a time, round by round in turn. A card that can't hold them all (--together)
takes them in groups, the ones that its targets need first. After each timed round the held-out loss is evaluated off
the clock, which gives the time and tokens to --target (starting, compiling and the --warmup steps don't count).

--budget seconds bound each group (all forms are one on a card of 141 GB): rounds end when the next one would not fit, a
form that is not ready by half of it, hangs or fails is named as such, with its error, never silently left out, and the
others go on. What is known is written to --json after every round, so a command that is cut off leaves it there.

MFU: minimind/base/peaks.py names convention and peaks. "of bare loop": against it in the same precision and compile
mode. The last lines check what was promised: fp16 against fp32 at least 1.8 times as fast at half the memory, on an
H200 1.5 million tokens/s at 25% MFU and then 2.4 million at 41%, on an RTX 3090 161 thousand. On a machine without a
GPU it refuses, unless --cpu is given to try the script out: the figures then say nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import options as shared
from benchmarks.corpus import Corpus
from benchmarks.figures import write_json
from benchmarks.gpu_forms import FORMS, Form, Result, figures, promises, table
from benchmarks.workers import Round, Worker, say
from minimind.base.errors import UserError
from minimind.base.hardware import Hardware, detect
from minimind.base.peaks import peak_flops
from minimind.model.transformer import ModelConfig, Transformer

READY_SHARE = 0.5  # of the budget: until then a form must have done its warm-up
A_FORM = 7 * 10**9  # bytes, by guess: a process of 64 rows with its CUDA context; Hugging Face's needs twice as much


class Budget:
    """Seconds that are left."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end, self.seconds = clock, clock() + seconds, seconds

    def left(self) -> float:
        return self._end - self._clock()

    def allows(self, seconds: float) -> bool:
        """Whether something that takes about ``seconds`` still fits."""
        return self.left() > seconds


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    hardware = detect()
    if hardware.device_type != "cuda" and not options.cpu:
        raise UserError("no CUDA GPU here; benchmarks/trainer.py measures on a CPU, --cpu tries this script out")
    text = shared.corpus(options)
    results = [Result(form) for form in options.only]
    groups = grouped(results, options.together or together(hardware))
    limit_compilers(max(map(len, groups)))
    say(f"{len(results)} forms in {len(groups)} group(s), {options.budget:.0f} s each at most")
    for group in groups:
        run(options, group, text, keep=lambda: report(options, hardware, results))
    for line in report(options, hardware, results):
        print(line)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = shared.parser(__doc__)
    parser.add_argument("--budget", type=float, default=450.0, help="seconds for each group of forms")
    parser.add_argument("--rounds", type=shared.positive, default=8)
    parser.add_argument("--steps", type=shared.positive, default=25, help="optimizer steps a round")
    parser.add_argument("--warmup", type=shared.positive, default=10)
    parser.add_argument("--micro-batch", type=shared.positive, default=64, help="rows a step; less for a small GPU")
    parser.add_argument("--target", type=float, default=2.6, help="held-out bits a byte")
    parser.add_argument("--only", type=_forms, default=list(FORMS), help="comma-separated names")
    parser.add_argument("--together", type=shared.positive, help="forms on the card at once (default: by its memory)")
    parser.add_argument("--cpu", action="store_true", help="run without a GPU, to try the script out")
    options = parser.parse_args(arguments)
    options.total_steps = options.warmup + options.rounds * options.steps
    return options


def _forms(text: str) -> list[Form]:
    known = {form.name: form for form in FORMS}
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return [known[name] for name in text.split(",")]


def together(hardware: Hardware) -> int:
    """How many forms the card's memory holds at once, by guess; where it is unknown, one."""
    return max(1, (hardware.memory or 0) // A_FORM)


def grouped(results: Sequence[Result], size: int) -> list[Sequence[Result]]:
    """The forms' results in their order, ``size`` at a time."""
    return [results[start : start + size] for start in range(0, len(results), size)]


def limit_compilers(processes: int) -> None:
    """Inductor would start a process a core (32 at most) in each of ``processes``: share the cores instead."""
    cores = os.cpu_count() or 1
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, cores // processes)))


def run(options: argparse.Namespace, results: Sequence[Result], text: Corpus, keep: Callable[[], object]) -> None:
    """Start every form, wait for those that get ready, train them in turn. ``keep`` is called after each round."""
    budget = Budget(options.budget)
    workers = [Worker(result.form.name, result.form.job(options, text)) for result in results]
    try:
        warm_up(results, workers, options.warmup, budget)
        for number in range(options.rounds):
            for result, worker in zip(results, workers, strict=True):
                if not result.error:
                    one_round(result, worker, options.steps, budget)
            say(f"round {number + 1}: {budget.left():.0f} s left")
            keep()
    finally:
        for worker in workers:
            worker.close()


def warm_up(results: Sequence[Result], workers: Sequence[Worker], steps: int, budget: Budget) -> None:
    """All at once: imports, compilation (training and evaluating compile apart), the first steps.

    Notes the form that fails or is too late.
    """

    def start(worker: Worker) -> None:
        worker.train(steps)
        worker.ask("evaluate")

    pool = ThreadPoolExecutor(len(workers))
    waiting = [pool.submit(start, worker) for worker in workers]
    for result, worker, future in zip(results, workers, waiting, strict=True):
        try:
            future.result(timeout=max(0.0, budget.left() - (1 - READY_SHARE) * budget.seconds))
        except TimeoutError:
            result.error = f"not ready after {READY_SHARE * budget.seconds:.0f} s"
            worker.close()
        except Exception as error:  # whatever a side does wrong is its own line
            result.error = last_line(error)
        say(f"{result.form.name}: {result.error or 'ready'}")
    pool.shutdown(wait=False, cancel_futures=True)


def one_round(result: Result, worker: Worker, steps: int, budget: Budget) -> None:
    """Train and evaluate, if the form's last round suggests that there is time."""
    expected = 2 * result.rounds[-1].seconds if result.rounds else 0.0
    if not budget.allows(expected):
        result.error = f"out of time after {len(result.rounds)} rounds"
        return
    try:
        with ended_after(max(0.0, budget.left()), worker):
            answer = worker.ask(f"steps {steps}")
            result.rounds.append(Round(answer["tokens"], answer["seconds"], answer["cpu_seconds"]))
            result.peak = answer["peak"]
            result.bits.append(worker.ask("evaluate")["bits_per_byte"])
    except Exception as error:  # as in warm_up
        result.error = last_line(error)


@contextmanager
def ended_after(seconds: float, worker: Worker) -> Iterator[None]:
    """A side that has not answered by then is ended, which whoever waits for it hears."""
    timer = Timer(seconds, worker.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def last_line(error: Exception) -> str:
    """The last line of what a side printed, or of the error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def report(options: argparse.Namespace, hardware: Hardware, results: Sequence[Result]) -> list[str]:
    """Write the JSON; the lines to print: machine, table, promises."""
    model = Transformer(ModelConfig.preset(options.preset, vocab_size=options.vocab_size), seed=None)
    flops, device = model.flops_per_token(options.row_length), hardware.name
    lines = figures(results, options, flops, device)
    about = {
        "machine": hardware.describe(),
        "preset": options.preset,
        "flops_per_token": flops,
        "target": options.target,
        "micro_batch": options.micro_batch,
        "row_length": options.row_length,
    }
    write_json(options.json, about | {"results": lines})
    return [
        f"{about['machine']}; {options.preset}, micro-batch {options.micro_batch} x {options.row_length}; "
        f"MFU: {flops / 1e6:.0f} MFLOP a token, {_peak_text(device)}",
        table(lines, options.target),
        *promises({line["form"]: line for line in lines}, device),
    ]


def _peak_text(device: str) -> str:
    half, single = peak_flops(device, "bf16"), peak_flops(device, "fp32")
    if half is None or single is None:
        return "peak unknown, so MFU is n/a"
    return f"peak {half / 1e12:.0f} TFLOP/s in half, {single / 1e12:.0f} in fp32 (dense, data sheet)"


if __name__ == "__main__":
    shared.exit_cleanly(main)
