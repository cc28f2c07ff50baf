"""What only a GPU can show: its attention kernels, its loss, every shipped JSON, compiled and eager, and generation.

    python -m pytest -m gpu tests/gpu

Never part of `make test`; without a GPU they are skipped. References are computed in fp32 on the CPU.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minimind.base.hardware import detect
from minimind.config.deepspeed import resolve
from minimind.data.store.batches import Batch
from minimind.inference.generation import Sampling, generate
from minimind.model import attention
from minimind.model.cuda import AMPERE, varlen_kernel, varlen_runs
from minimind.model.transformer import ModelConfig, Transformer
from minimind.training.engine.engine import Engine, start_processes
from minimind.training.engine.muon import Muon
from minimind.training.engine.optimizers import parameter_groups
from minimind.training.record.file import read_metrics
from minimind.training.run import evaluation
from minimind.training.run.evaluation import evaluate
from tests.support import DS_CONFIGS, tiny_config
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda")
VOCABULARY = 400
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
}
CONFIG = ModelConfig(**SHAPE, initializer_range=0.1)
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
CONFIGS = sorted(path.stem for path in DS_CONFIGS.glob("*.json"))

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]


def rows(length: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, labels (a third masked) and document ids [4, length], documents of 1 to 90 tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (4, length), generator=generator)
    labels = ids.roll(-1, 1).masked_fill(torch.rand(ids.shape, generator=generator) < 0.3, -100)
    begins = torch.rand(ids.shape, generator=generator) < 0.03
    return ids, labels, begins.cumsum(1)


def gradients(model: Transformer, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The loss a token and all gradients in one fp32 vector, on the CPU."""
    ids, labels, documents = inputs
    loss = model(ids, labels, document_ids=documents) / (labels != -100).sum()
    loss.backward()
    parts = [parameter.grad.float().cpu().flatten() for parameter in model.parameters() if parameter.grad is not None]
    return loss.detach().cpu(), torch.cat(parts)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["auto", "mask", "varlen", "flex"])
def test_every_form_of_attention_has_the_cpus_gradient(
    backend: attention.Backend, dtype: torch.dtype, compiled: bool
) -> None:
    if backend == "varlen" and not varlen_runs(DEVICE, dtype, CONFIG.head_dim):
        pytest.skip("no varlen kernel for this")
    torch._dynamo.reset()
    loss, truth = gradients(Transformer(CONFIG, seed=3), *rows())
    model = Transformer(CONFIG, seed=3).to(DEVICE, dtype)
    model.attention_backend = backend
    if compiled:
        model.compile()
    theirs, found = gradients(model, *(x.to(DEVICE) for x in rows()))
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2  # fp32: TF32 is off by default
    torch.testing.assert_close(theirs, loss, rtol=tolerance, atol=0)
    assert (found - truth).norm() / truth.norm() < tolerance


def test_auto_never_takes_the_dense_mask_where_a_kernel_is() -> None:
    if torch.cuda.get_device_capability() < AMPERE:
        pytest.skip("FlashAttention-2 needs Ampere")
    assert varlen_kernel() is not None  # torch 2.12, which constraints.txt has
    for dtype in HALF.values():
        assert attention.fastest(DEVICE, dtype, 64) == "varlen"


@pytest.mark.parametrize("dtype", [torch.float32, *HALF.values()])
def test_greedy_answers_are_those_of_full_forwards(dtype: torch.dtype) -> None:
    """The cache on the GPU against no cache on the GPU, in the same precision; near ties may fall either way."""
    model = Transformer(CONFIG, seed=3).to(DEVICE, dtype).eval()
    prompt = rows()[0][0, :20].tolist()
    answer = list(generate(model, prompt, Sampling(16, temperature=0)))
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer], device=DEVICE))[0, len(prompt) - 1 : -1].float()
    chosen = logits.gather(1, torch.tensor(answer, device=DEVICE)[:, None])[:, 0]
    assert bool((chosen >= logits.max(1).values - 0.05 * logits.std()).all())


@contextmanager
def no_waits() -> Iterator[None]:
    """What waits for the device within raises: reads, copies to the host, copies from memory that is not pinned."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF.values()])
def test_a_step_of_the_model_waits_for_nothing(dtype: torch.dtype, compiled: bool) -> None:
    """Copy of the batch, forward, backward; twice before, for what is set up and compiled. With the optimizers that are
    ours. The dense mask where nothing compiles: varlen asks once a forward pass where the documents begin."""
    torch._dynamo.reset()
    model = Transformer(CONFIG, seed=3).to(DEVICE, dtype)
    model.attention_backend = "auto" if compiled else "mask"
    groups = parameter_groups(model, "Muon", {"lr": 1e-3, "weight_decay": 0.1})
    optimizer = Muon(groups, compute_dtype=dtype)
    if compiled:
        model.compile()

    def step() -> Tensor:
        ids, labels, documents = rows()
        batch = Batch(ids, labels, torch.zeros_like(ids), documents, rows=(0,) * len(ids), num_trainable=1).to(DEVICE)
        optimizer.zero_grad()
        loss: Tensor = model(batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    step()
    with no_waits():
        loss = step()
    assert math.isfinite(float(loss))


def test_an_evaluation_waits_once_at_its_end() -> None:
    """The read of its losses is the one wait: taken out, nothing else raises."""
    model = Transformer(CONFIG, seed=3).to(DEVICE)
    model.attention_backend = "mask"
    ids, labels, documents = rows()
    batches = [Batch(ids, labels, torch.zeros_like(ids), documents, rows=(0,) * len(ids), num_trainable=1)] * 3
    truth = evaluate(model, batches, DEVICE, 1, None)
    losses: list[Tensor] = []

    def unread(values: Sequence[float | Tensor]) -> list[float]:
        losses.extend(value for value in values if isinstance(value, Tensor))
        return [0.0]

    with pytest.MonkeyPatch.context() as patch, no_waits():
        patch.setattr(evaluation, "read", unread)
        evaluate(model, batches, DEVICE, 1, None)
    assert sum(float(loss) for loss in losses) / 3 == pytest.approx(truth.loss)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "offload" not in name])
def test_forward_and_backward_wait_for_nothing_in_any_layout(name: str) -> None:
    """With DeepSpeed's hooks on. Its update may wait: tests/training/engine/test_host_reads.py lists where; offload
    reads each gradient."""
    if "bf16" in name and not detect().bf16:
        pytest.skip("this GPU has no bf16")
    start_processes()
    resolved = resolve(json.loads((DS_CONFIGS / f"{name}.json").read_text()), tiny_config(), 1, detect())
    model = Transformer(CONFIG, seed=3)
    model.attention_backend = "mask"
    engine = Engine(model, resolved, lambda step: 1.0)
    ids, labels, documents = rows()
    batch = Batch(ids, labels, torch.zeros_like(ids), documents, rows=(0,) * len(ids), num_trainable=1)
    for waits in (nullcontext, nullcontext, no_waits):
        with waits():
            engine.backward(engine.forward(batch, last=True) * 1e-3)
        engine.update()
    engine.close()


def launch(name: str, files: dict[str, Path], out: Path, *settings: str, resume: Path | None = None) -> list[float]:
    """Run launch/pretrain.py in a process of its own; the losses of its steps."""
    words = [
        "--deepspeed_config",
        str(DS_CONFIGS / f"{name}.json"),
        "--train-file",
        str(files["pretrain"]),
        "--tokenizer",
        str(files["tokenizer"]),
        "--output-dir",
        str(out),
    ]
    given = [f"model={json.dumps(SHAPE)}", "max_seq_length=64", "logging_steps=1", "per_device_train_batch_size=8"]
    words += [word for setting in (*given, *settings) for word in ("--set", setting)]
    words += ["--resume", str(resume)] if resume else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch" / "pretrain.py"), *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line["loss"] for line in read_metrics(out / "metrics.jsonl") if line["kind"] == "train"]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shipped_json_trains(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    if "bf16" in name and not detect().bf16:
        pytest.skip("this GPU has no bf16")
    losses = launch(name, files, tmp_path, "max_steps=30", "compile=off")
    assert losses[0] == pytest.approx(math.log(VOCABULARY), abs=0.5)
    assert min(losses[-5:]) < losses[0]


@pytest.mark.parametrize("name", ["fp32", *HALF])
def test_compiled_and_resumed_runs_follow_the_eager_one(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    eager = launch(name, files, tmp_path / "eager", "max_steps=12", "compile=off", "save_steps=6")
    compiled = launch(name, files, tmp_path / "compiled", "max_steps=12", "compile=on")
    assert compiled == pytest.approx(eager, rel=2e-2)
    checkpoint = tmp_path / "eager" / "checkpoints" / "step-00000006"
    resumed = launch(name, files, tmp_path / "resumed", "max_steps=12", "compile=off", resume=checkpoint)
    assert resumed == pytest.approx(eager[6:], rel=2e-2)
