"""No hidden wait for a GPU: every host read of an optimizer step, its log and an evaluation, for each shipped JSON.

``ALLOWED`` has each by its place; another one fails, and so does an entry that is not met any more. What only the
model does on a device that is no CPU runs on "meta", whose values nobody can read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.config.deepspeed import resolve
from minimind.data.store.batches import Batch
from minimind.model import attention
from minimind.model.transformer import Transformer
from minimind.training.engine import engine as engine_module
from minimind.training.engine.engine import Engine
from minimind.training.engine.muon import Muon
from minimind.training.engine.optimizers import Lion, parameter_groups
from minimind.training.engine.plain_optimizers import Adagrad, UncorrectedAdam
from minimind.training.engine.step import train_step
from minimind.training.record.recorder import Progress, Recorder
from minimind.training.run import main
from minimind.training.run.evaluation import evaluate
from tests.host_reads import Place, Read, host_reads
from tests.support import CPU, DS_CONFIGS, random_rows, split, tiny_config, tiny_model
from tests.training.run.test_main import _one_rank_with_its_signals as _signals  # noqa: F401 (an autouse fixture)
from tests.training.run.test_main import launch

CONFIGS = sorted(path.name for path in DS_CONFIGS.glob("*.json"))
TENSORS = len(list(tiny_model().parameters()))
MICRO_BATCHES = 2

LOSS, EVALUATION = "minimind/model/loss.py", "minimind/training/run/evaluation.py"
ENGINE, RECORDER = "minimind/training/engine/engine.py", "minimind/training/record/recorder.py"
PARAMETERS = "minimind/training/engine/parameters.py"
UTILS, ZERO = "deepspeed/runtime/utils.py", "deepspeed/runtime/zero/stage_1_and_2.py"
ZERO_3 = "deepspeed/runtime/zero/stage3.py"
ON_DEVICE = "from the device to itself: no copy"
DECIDES = "whether the gradients are finite, and so whether the step is applied: DeepSpeed's wait, once a step"

# place -> how often in one piece of work (a step, a flush, an evaluation, a look at the weights), and why
ALLOWED: dict[Place, tuple[int, str]] = {
    Place(LOSS, "_sum_and_losses", "_local_scalar_dense"): (MICRO_BATCHES, "on a CPU only: skips untrained rows"),
    Place(ENGINE, "_number", "_local_scalar_dense"): (1, "fp32 at stage 0 only: whether the gradients are finite"),
    Place(ENGINE, "Engine._update_bare", "to"): (TENSORS + 1, f"in torch's norm and clipping, {ON_DEVICE}"),
    Place(RECORDER, "read", "tolist"): (1, "the one transfer of a log interval, of an evaluation, of a checkpoint"),
    Place(RECORDER, "Recorder._by_source", "tolist"): (1, "with weighted sources: the rows' losses of a log interval"),
    Place(PARAMETERS, "Whole.broken", "tolist"): (1, "the look at the weights, every so many steps"),
    Place(PARAMETERS, "Partitioned.broken", "tolist"): (1, "the same"),
    Place(UTILS, "is_invalid_grad_norm", "_local_scalar_dense"): (3, DECIDES),
    Place(UTILS, "mask_nan_or_inf_with_val_inplace", "tensor"): (2, "a constant to the device, once a parameter group"),
    Place(UTILS, "clip_tensors_by_global_norm", "_local_scalar_dense"): (1, "whether to clip, after the wait above"),
    Place(UTILS, "get_global_norm_of_tensors", "to"): (TENSORS + 1, ON_DEVICE),
    Place(ZERO, "DeepSpeedZeroOptimizer.has_overflow", "_local_scalar_dense"): (1, DECIDES),
    Place(ZERO, "DeepSpeedZeroOptimizer.has_overflow", "to"): (1, ON_DEVICE),
    Place(ZERO, "DeepSpeedZeroOptimizer.get_grad_norm_direct", "to"): (TENSORS, ON_DEVICE),
    Place(ZERO, "DeepSpeedZeroOptimizer.update_offload_overflow_tracker", "_local_scalar_dense"): (
        TENSORS,
        "offload: each gradient before it is copied to the host",
    ),
    **{
        Place(ZERO, "DeepSpeedZeroOptimizer.complete_grad_norm_calculation_for_cpu_offload", name): (times, why)
        for name, times, why in (
            ("_local_scalar_dense", TENSORS + 2, "offload: each gradient's norm, which is read one by one"),
            ("tensor", 2, "offload: the norm to the device"),
        )
    },
    Place(ZERO_3, "DeepSpeedZeroOptimizer_Stage3.has_overflow", "_local_scalar_dense"): (1, DECIDES),
    Place(ZERO_3, "DeepSpeedZeroOptimizer_Stage3.has_overflow", "to"): (1, ON_DEVICE),
    Place(ZERO_3, "DeepSpeedZeroOptimizer_Stage3.get_grad_norm_direct", "tensor"): (2, "a zero to the device"),
    **{
        Place(ZERO_3, "DeepSpeedZeroOptimizer_Stage3.complete_grad_norm_calculation_for_cpu_offload", name): (2, why)
        for name, why in (
            ("_local_scalar_dense", "offload: the norm of each parameter group"),
            ("cpu", "offload: the same, which the host has already"),
        )
    },
}
Found = dict[str, dict[str, list[Read]]]  # JSON -> piece of work -> its reads


def micro_batches() -> list[Batch]:
    """Two, as the trainer makes them: what the host must know is there as numbers."""
    return [
        Batch(
            *(rows.input_ids, rows.labels.clamp_min(0), rows.position_ids, rows.document_ids),
            rows=(0,) * 4,
            num_trainable=rows.labels.numel(),
            row_sources=rows.row_sources,
            row_tokens=(rows.labels.shape[1],) * 4,
        )
        for rows in split(random_rows(4 * MICRO_BATCHES, seed=1), 4)
    ]


def reads_of(name: str) -> dict[str, list[Read]]:
    """Of the second step on (the first sets things up): with the norm kept as the tensor that a device would have."""
    resolved = resolve(json.loads((DS_CONFIGS / name).read_text()), tiny_config(), 1, CPU, emulate_fp16=True)
    model = tiny_model()
    model.attention_backend = "mask"  # "runs", a CPU's own form, cuts on the host
    engine, progress = Engine(model, resolved, lambda step: 1.0), Progress()
    recorder = Recorder(lambda _: None, engine.sum_over_ranks, 10, sources=("a", "b"))
    batches = micro_batches()

    def step(by_source: bool = False) -> None:
        result = train_step(engine, batches, by_source=by_source)
        progress.advance(result)
        recorder.add(result, progress)

    def held_out() -> None:
        evaluate(engine.module, batches, engine.device, 1, 100, engine.sum_over_ranks)

    pieces: dict[str, Callable[[], Any]] = {
        "step": step,
        "step by source": lambda: step(by_source=True),
        "flush": recorder.flush,
        "evaluation": held_out,
        "weights": engine.broken_parameters,
        "progress": progress.state,
    }
    step()
    found = {}
    for piece, work in pieces.items():
        with host_reads() as found[piece]:
            work()
    engine.close()
    return found


@pytest.fixture(scope="module")
def found(one_rank: None) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_unread", lambda norm: torch.as_tensor(norm).detach())
        return {name: reads_of(name) for name in CONFIGS}


def test_every_host_read_is_an_allowed_one(found: Found) -> None:
    others = {
        f"{name}, {piece}: {read}"
        for name, pieces in found.items()
        for piece, reads in pieces.items()
        for read in reads
        if read.place not in ALLOWED
    }
    assert not others, "a GPU would wait here:\n" + "\n".join(sorted(others))


def test_none_happens_more_often_than_was_allowed(found: Found) -> None:
    too_often = {
        f"{name}, {piece}: {place} {times} times, {ALLOWED[place][0]} are allowed"
        for name, pieces in found.items()
        for piece, reads in pieces.items()
        for place, times in Counter(read.place for read in reads).items()
        if place in ALLOWED and times > ALLOWED[place][0]
    }
    assert not too_often, "\n".join(sorted(too_often))


def test_every_allowed_read_still_happens(found: Found) -> None:
    met = {read.place for pieces in found.values() for reads in pieces.values() for read in reads}
    gone = [f"{place}: {why}" for place, (_, why) in ALLOWED.items() if place not in met]
    assert not gone, "take these out of ALLOWED:\n" + "\n".join(gone)


def test_a_read_is_named_with_its_file_line_function_and_operator(found: Found) -> None:
    read = next(read for read in found["bf16.json"]["flush"] if read.place.function == "read")
    source = (Path(__file__).parents[3] / RECORDER).read_text().splitlines()
    assert ".tolist()" in source[read.line - 1]
    assert str(read) == f"{RECORDER}:{read.line} read: tolist"


def test_an_evaluation_is_read_once_however_many_batches_it_has(found: Found) -> None:
    ours = [read for read in found["bf16.json"]["evaluation"] if read.place.file != LOSS]
    assert [read.place.operator for read in ours] == ["tolist"]


def test_the_loop_of_a_whole_run_reads_nothing_else(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, log, evaluations and looks at the weights; checkpoints are copies to the host, and a CPU's form of
    attention and its padding of rows are the CPU's own."""
    reads: list[Read] = []
    train = main.train

    def watched(run: Any) -> str:
        with host_reads() as seen:
            ended = train(run)
        reads.extend(seen)
        return ended

    monkeypatch.setattr(main, "train", watched)
    words = ("attention_backend=mask", "eval_steps=2", "save_steps=50")
    more = [part for word in words for part in ("--set", word)]
    assert launch("pretrain", "bf16.json", files, tmp_path, "--max-steps", "4", *more) == 0
    places = {read.place for read in reads} - set(ALLOWED)
    ours = {place for place in places if place.file.startswith("minimind/")}
    copies = {place for place in ours if place.file.startswith("minimind/training/checkpoint/")}
    padding = {Place(LOSS, "_rounded_up", name) for name in ("_local_scalar_dense", "nonzero")}
    padding |= {Place(LOSS, "_sum_and_losses", "index")}
    assert reads and ours - copies - padding == set()


# What the mode sees: each of these waits for a GPU

values = torch.tensor([1.0, 0.0, 2.0])
WAITS: dict[str, tuple[Callable[[], Any], str]] = {
    "item": (lambda: values.sum().item(), "_local_scalar_dense"),
    "float": (lambda: float(values[0]), "_local_scalar_dense"),
    "if": (lambda: bool(values[0]), "_local_scalar_dense"),
    "list": (values.tolist, "tolist"),
    "numpy": (values.numpy, "numpy"),
    "cpu": (values.cpu, "cpu"),
    "to": (lambda: values.to("cpu"), "to"),
    "tensor": (lambda: torch.tensor([1.0], device="cpu"), "tensor"),
    "nonzero": (values.nonzero, "nonzero"),
    "where": (lambda: torch.where(values > 0), "nonzero"),
    "boolean index": (lambda: values[values > 0], "index"),
    "masked_select": (lambda: values.masked_select(values > 0), "masked_select"),
    "unique": (values.unique, "_unique2"),
    "equal": (lambda: torch.equal(values, values), "equal"),
    "repeats": (lambda: values.repeat_interleave(values.long()), "repeat_interleave"),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_mode_sees_what_waits(name: str) -> None:
    work, operator = WAITS[name]
    with host_reads() as seen:
        work()
    assert [read.place.operator for read in seen] == [operator]


def test_the_mode_keeps_quiet_where_nothing_waits() -> None:
    with host_reads() as seen:
        values.to(torch.float64).masked_fill(values > 0, 0.0)[torch.tensor([0, 2])].sum()
        values.to("cpu", non_blocking=True)
        values.repeat_interleave(2)
    assert not seen


# What runs where the device is not a CPU: "meta" has no values, so that reading one raises


def meta_gradients(**options: Any) -> Transformer:
    """The model after a forward and a backward pass on "meta", half of the labels untrained."""
    rows = random_rows(4, seed=1)
    with torch.device("meta"):
        model = Transformer(tiny_config().model, seed=None)
    for name, value in options.items():
        setattr(model, name, value)
    inputs = (rows.input_ids, rows.labels, rows.position_ids, rows.document_ids)
    loss, _ = model(*(x.to("meta") for x in inputs), by_row=True)
    loss.backward()
    return model


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_model_reads_nothing_beside_a_cpu(checkpointing: bool) -> None:
    model = meta_gradients(attention_backend="mask", gradient_checkpointing=checkpointing)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_only_varlen_asks_the_device_where_documents_begin() -> None:
    """Once a forward pass, as model/cuda.py says; compiled runs take FlexAttention, which does not."""
    documents = random_rows(4, seed=1).document_ids
    with host_reads() as seen:
        attention.run_offsets(documents)
        attention.document_mask(documents)
    assert [read.place for read in seen] == [Place("minimind/model/attention.py", "run_offsets", "nonzero")]


@pytest.mark.parametrize("kind", [Muon, Lion, Adagrad, UncorrectedAdam])
def test_our_optimizers_read_nothing_beside_a_cpu(kind: type[torch.optim.Optimizer]) -> None:
    model = meta_gradients(attention_backend="mask")
    name = "Muon" if kind is Muon else "AdamW"
    optimizer = kind(parameter_groups(model, name, {"lr": 0.1, "weight_decay": 0.1}))
    optimizer.step()
    optimizer.step()
