"""What torch.compile makes of a training step for NVIDIA cards that are not here: graph breaks, kernels, launches.

    python -m venv ../cudavenv && ../cudavenv/bin/pip install torch==2.13.0  # PyPI's: CUDA, 5 GB, no GPU needed
    python benchmarks/cuda_without_gpu.py --python ../cudavenv/bin/python [--cards 80,86,90] [--precisions bf16,fp16]
        [--forms flex,mask,varlen] [--preset 26m] [--rows 8] [--json OUT]

Each line of the table is a process of its own in that Python (the other packages are borrowed from this one, so both
must be one version of Python): a step of the model, forward with its loss and backward, on fake tensors
(absent_card.py). Once eager, its operations counted; once through dynamo, AOTAutograd and Inductor, whose kernels
Triton and ptxas compile for the card, in every configuration that autotuning would choose from. "launches" are the
kernel calls in Inductor's own code, forward + backward. A case that fails says where, and the others go on.

First, here and without CUDA: how many graphs dynamo makes of batches that are packed differently, with real values
(fake ones have none): more than one for each kind of call would be a recompilation in the middle of a run.

Weakness: nothing runs, so neither speed nor results are checked, and DeepSpeed's part of a step is not in it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import sysconfig
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.absent_card import CARDS, pretend
from benchmarks.figures import markdown, write_json
from benchmarks.options import exit_cleanly, positive
from benchmarks.workers import ROOT
from minimind.base.errors import UserError
from minimind.data.store.batches import Batch
from minimind.model import attention
from minimind.model.attention import Backend
from minimind.model.transformer import ModelConfig, Transformer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FORMS = ("flex", "mask", "varlen")
KERNEL = re.compile(r"^\s+(\w+)\.run\(", re.MULTILINE)  # a Triton kernel's call in Inductor's wrapper
LIBRARY = re.compile(r"^\s+(?:\w+ = )?(?:extern_kernels|torch\.ops\.\w+)\.(\w+)", re.MULTILINE)  # and a library's


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    card: int
    precision: str
    form: str
    preset: str = "26m"
    rows: int = 8
    length: int = 512


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.case:
        print(json.dumps(run_case(Case(**json.loads(options.case)))))
        return
    graphs = graphs_of(ModelConfig.preset("tiny"), packed_differently(4))
    print("graphs traced over differently packed batches: " + ", ".join(f"{k} {v}" for k, v in graphs.items()))
    cases = [
        Case(card, precision, form, options.preset, options.rows)
        for form in options.forms
        for precision in options.precisions
        for card in options.cards
    ]
    results = []
    for case in cases:
        results.append(asdict(case) | in_process(options.python, case))
        print(table(results[-1:]).splitlines()[-1], flush=True)
    print(table(results))
    write_json(options.json, {"torch": torch.__version__, "graphs": graphs, "results": results})


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of an environment with CUDA's torch")
    parser.add_argument("--cards", type=_some(CARDS, int), default=[80, 86, 90])
    parser.add_argument("--precisions", type=_some(DTYPES), default=["bf16", "fp16"])
    parser.add_argument("--forms", type=_some(FORMS), default=["flex", "mask", "varlen"])
    parser.add_argument("--preset", default="26m")
    parser.add_argument("--rows", type=positive, default=8, help="of 512 tokens")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # what a process of its own is asked to do
    return parser.parse_args(arguments)


def _some(known: Any, kind: type = str) -> Any:
    def parse_list(text: str) -> list[Any]:
        found = [kind(part) for part in text.split(",")]
        if unknown := [part for part in found if part not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(map(str, known))}")
        return found

    return parse_list


# Recompilations, on the CPU


def packed_differently(count: int, rows: int = 4, length: int = 64) -> list[Batch]:
    """Batches of one shape whose documents begin elsewhere and whose trainable tokens are others each time."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for index in range(count):
        begins = torch.rand((rows, length), generator=generator) < 0.02 * (index + 1)
        ids = torch.randint(1, 100, (rows, length), generator=generator)
        labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) < 0.2 * index, -100)
        documents = begins.cumsum(1)
        batches.append(Batch(ids, labels, documents * 0, documents, (0,) * rows, int((labels != -100).sum())))
    return batches


def graphs_of(config: ModelConfig, batches: Sequence[Batch], form: Backend = "flex") -> dict[str, int]:
    """Graphs that dynamo makes of training steps, of steps with the loss by source and of an evaluation; 1 is right."""
    from torch.nn.attention import flex_attention

    torch._dynamo.reset()
    made: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Sequence[Tensor]) -> Any:
        made.append(graph)
        return graph.forward

    model = Transformer(config, seed=0)
    model.attention_backend = form
    compiled = torch.compile(model, backend=backend)
    kinds = {
        "training": ({}, nullcontext),
        "by source": ({"by_row": True}, nullcontext),
        "held out": ({}, torch.no_grad),
    }
    graphs = {}
    with patch.object(flex_attention, "_validate_device", lambda *_: None):  # a CPU has no kernel for the backward
        for kind, (how, context) in kinds.items():
            before = len(made)
            for batch in batches:
                with context():
                    compiled(batch.input_ids, batch.labels, batch.position_ids, batch.document_ids, **how)
            graphs[kind] = len(made) - before
    return graphs


# One case, in a process of its own


def in_process(python: Path, case: Case) -> dict[str, Any]:
    """What ``run_case`` says there, or the last line of what went wrong."""
    command = [str(python), str(Path(__file__).resolve()), "--case", json.dumps(asdict(case))]
    borrowed = f"import sys; sys.path.append({sysconfig.get_paths()['purelib']!r}); sys.argv = {command[1:]!r}; "
    code = borrowed + f"import runpy; runpy.run_path({command[1]!r}, run_name='__main__')"
    try:
        done = subprocess.run([str(python), "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"--python {python}: {error.strerror}") from error
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
    if done.returncode != 0 or not last:
        return {"error": last[0] if last else f"ended with {done.returncode}"}
    answer: dict[str, Any] = json.loads(last[0])
    return answer


def run_case(case: Case) -> dict[str, Any]:
    """Counts of one case, with what failed in "error" and where in "where"."""
    pretend(CARDS[case.card])
    answer: dict[str, Any] = {"error": "", "where": []}
    start = time.perf_counter()
    for part in (eager, compiled):
        try:
            answer |= part(case)
        except Exception as error:
            frames = traceback.extract_tb(_cause(error).__traceback__)[-8:]
            said = " ".join(str(_cause(error)).split())[-900:]
            answer["error"] += f"{part.__name__}: {type(_cause(error)).__name__}: {said} "
            answer["where"] += [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return answer | {"seconds": time.perf_counter() - start}


def _cause(error: BaseException) -> BaseException:
    """What came first: dynamo and Inductor wrap it."""
    inner = error.__cause__ or getattr(error, "inner_exception", None)
    return error if inner is None else _cause(inner)


def fake_step(case: Case, form: Backend) -> tuple[Any, Transformer, list[Tensor]]:
    """Fake tensors' mode, and in it a model and a batch on the card."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode, torch.device("cuda"):
        torch.set_default_dtype(DTYPES[case.precision])
        model = Transformer(ModelConfig.preset(case.preset), seed=None)
        torch.set_default_dtype(torch.float32)
        batch = [torch.empty(case.rows, case.length, dtype=torch.int64) for _ in range(4)]
    model.attention_backend = form
    return mode, model, batch


def eager(case: Case) -> dict[str, Any]:
    """Operations of a step that is not compiled. FlexAttention has no such form: there the dense mask's."""
    from minimind.training.engine.measure import Launches

    mode, model, batch = fake_step(case, "mask" if case.form == "flex" else case.form)  # type: ignore[arg-type]
    counts = []
    offsets = batch[0].new_empty  # fake tensors have no values, so nobody can say where documents begin: four a row
    with mode, patch.object(attention, "run_offsets", lambda ids: offsets(4 * ids.shape[0] + 1)):
        with Launches() as launches:
            loss = model(*batch)
        counts.append(launches.count)
        with Launches() as launches:
            loss.backward()
        counts.append(launches.count)
    return {"eager": counts}


def compiled(case: Case) -> dict[str, Any]:
    """A step through Inductor for the card, twice; then what it made."""
    from torch._dynamo.utils import counters
    from torch._inductor.graph import GraphLowering

    mode, model, batch = fake_step(case, case.form)  # type: ignore[arg-type]
    code: list[str] = []
    with Built() as built, patch.object(GraphLowering, "save_output_code", code.append), mode:
        run = torch.compile(model, backend=inductor)
        for _ in range(2):
            run(*batch).backward()
    return {
        "breaks": sum(counters["graph_break"].values()),
        "reasons": list(counters["graph_break"]),
        "graphs": len(code),
        "kernels": len(built.configurations),
        "configurations": built.configurations.total(),
        "launches": [launches_in(text) for text in code],
        "library": dict(Counter(name for text in code for name in LIBRARY.findall(text))),
    }


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Any:
    """Inductor's backend, but what it compiled is then run as it was traced, on fake tensors."""
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(graph: torch.fx.GraphModule, inputs: Sequence[Tensor], **options: Any) -> Any:
        compile_fx_inner(graph, inputs, **options)
        return make_boxed_func(graph.forward)

    return compile_fx(graph, inputs, inner_compile=inner)


class Built:
    """Counts, within, the configurations that were compiled of each Triton kernel."""

    def __init__(self) -> None:
        self.configurations: Counter[str] = Counter()

    def __enter__(self) -> Built:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        compile_one = CachingAutotuner._precompile_config

        def counted(tuner: Any, configuration: Any) -> Any:
            found = compile_one(tuner, configuration)
            self.configurations[tuner.fn.__name__] += 1
            return found

        self._patch = patch.object(CachingAutotuner, "_precompile_config", counted)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def launches_in(code: str) -> int:
    """Kernel calls in the code that Inductor wrote for one graph: Triton's, and those of libraries."""
    return len(KERNEL.findall(code)) + len(LIBRARY.findall(code))


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown."""
    header = ["card", "precision", "form", "eager operations", "graphs", "breaks", "kernels", "configurations built"]
    return markdown([*header, "launches", "s", "failed"], [_row(result) for result in results])


def _row(result: Mapping[str, Any]) -> list[str]:
    def summed(name: str) -> str:
        counts = result.get(name)
        return f"{' + '.join(map(str, counts))} = {sum(counts)}" if counts else "n/a"

    numbers = [str(result.get(name, "n/a")) for name in ("graphs", "breaks", "kernels", "configurations")]
    seconds = f"{result['seconds']:.0f}" if "seconds" in result else "n/a"
    start = [f"sm_{result['card']}", result["precision"], result["form"], summed("eager")]
    return [*start, *numbers, summed("launches"), seconds, result["error"] or "no"]


if __name__ == "__main__":
    exit_cleanly(main)
