"""The plan: memory against the tensors that real engines hold, optimizer states against the optimizers, what is n/a."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.base.launcher import free_port
from minimind.base.processor import cpu_has_fast
from minimind.commands.plan import largest_micro_batch, offload_line, parse_bytes, run_plan
from minimind.config.deepspeed import resolve
from minimind.config.memory import activation_bytes_per_token, body_parameters, estimate_memory
from minimind.config.model import PRESETS, ModelConfig
from minimind.config.run import load_run_config
from minimind.model import attention, ops
from minimind.model.transformer import Transformer

if TYPE_CHECKING:
    from minimind.training.engine.engine import Engine

CONFIGS = Path(__file__).parents[2] / "ds_configs"
GPU = Hardware("cuda", True, True, "GPU", 24 * 2**30)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALL = ["model=tiny", "model.vocab_size=1000"]


def storage_of(tensor: torch.Tensor) -> Any:
    """None where it has no memory of its own: another test's tensor inside vmap or on the meta device."""
    try:
        storage = tensor.untyped_storage()
        return storage if storage.data_ptr() else None
    except RuntimeError:
        return None


def storages() -> dict[int, Any]:
    """Every live tensor storage, gradients included, by address; holding them keeps addresses from coming back."""
    gc.collect()
    found: dict[int, Any] = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type != "meta":
            tensors = [thing, thing.grad] if thing.is_leaf and thing.grad is not None else [thing]
            kept = [storage for tensor in tensors if (storage := storage_of(tensor)) is not None]
            found.update((storage.data_ptr(), storage) for storage in kept)
    return found


def test_tensors_without_memory_are_not_counted() -> None:
    """Another test may have left them behind."""
    inside: list[torch.Tensor] = []
    torch.func.vmap(lambda x: inside.append(x) or x)(torch.ones(3, 4))
    assert storage_of(inside[0]) is None
    assert storages()


def new_bytes(before: dict[int, Any]) -> int:
    """Bytes of the storages that were not there before."""
    return sum(storage.nbytes() for address, storage in storages().items() if address not in before)


class Rows:
    """One micro-batch of random rows."""

    def __init__(self, vocabulary: int) -> None:
        self.input_ids = self.labels = torch.randint(vocabulary, (2, 16))
        self.position_ids = torch.arange(16).expand(2, 16)
        self.document_ids = torch.zeros_like(self.input_ids)

    def to(self, device: torch.device) -> Rows:
        return self


def accumulate(engine: Engine, vocabulary: int) -> None:
    engine.backward(engine.forward(Rows(vocabulary), last=True) / 32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("fp32", 0),
        ("fp32", 1),
        ("fp16", 1),
        ("fp16_zero2", 2),
        ("bf16", 1),
        ("bf16_zero2", 2),
        ("lion", 1),
        ("bf16_zero3", 3),
        ("bf16_zero3_offload", 3),
    ],
)
def test_memory_equals_what_a_real_engine_holds(name: str, stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from minimind.training.engine.engine import Engine, start_processes

    port = str(free_port())
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for key, value in {**environment, "MASTER_PORT": os.environ.get("MASTER_PORT", port)}.items():
        monkeypatch.setenv(key, value)
    start_processes(emulate_fp16=True)
    run = load_run_config(None, SMALL)
    config = {"zero_optimization": {"stage": stage}}
    source: Any = CONFIGS / f"{name}.json"
    if name == "fp32":
        source = {**config, "gradient_clipping": 1.0}
    resolved = resolve(source, run, 1, Hardware("cpu", True, True))
    before = storages()
    engine = Engine(Transformer(run.model), resolved, lambda step: 1.0)
    accumulate(engine, run.model.vocab_size)
    backward = new_bytes(before)
    while not engine.update().applied:  # fp16's first loss scales may overflow
        accumulate(engine, run.model.vocab_size)
    after = new_bytes(before)
    engine.close()

    memory = estimate_memory(run, resolved)
    assert after == pytest.approx(memory.states + memory.host, rel=0.01)
    if stage == 3:
        assert memory.states < backward + memory.optimizer <= memory.peak + memory.host + memory.optimizer
        return
    # before the first update DeepSpeed has no optimizer states yet, or allocated them at start
    expected = memory.weights + memory.masters + memory.gradients
    assert backward == pytest.approx(expected, rel=0.02) or backward == pytest.approx(
        expected + memory.optimizer, rel=0.02
    )


@pytest.mark.parametrize("preset", ["tiny", "26m", "104m"])
def test_body_parameters_are_the_two_dimensional_ones(preset: str) -> None:
    model = PRESETS[preset]
    norms = model.hidden_size * (2 * model.num_hidden_layers + 1)
    assert body_parameters(model) == model.num_parameters() - model.vocab_size * model.hidden_size - norms


def kept_bytes(model: Transformer, tokens: int) -> int:
    """What autograd keeps of one forward of ``tokens`` tokens besides the parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes back
        return tensor

    ids = torch.randint(64, (1, tokens))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, ids, torch.arange(tokens)[None], torch.zeros_like(ids))
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_activations_are_what_autograd_keeps_on_a_cpu(
    family: str, checkpointing: bool, precision: str, emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this processor's own choice of form, and by one's that has only fp32. Two against four layers, so that
    everything outside the layers cancels."""
    hardware = Hardware("cpu", fp16=False, bf16=not emulated and cpu_has_fast(torch.bfloat16))
    if emulated:
        for module in (ops, attention):
            monkeypatch.setattr(module, "cpu_has_fast", lambda dtype: dtype == torch.float32)
    tokens, kept, formula = 256, [], []
    for layers in (2, 4):
        config = ModelConfig.preset("tiny", vocab_size=64, num_hidden_layers=layers, model_type=family)
        model = Transformer(config).to(DTYPES[precision])
        model.gradient_checkpointing = checkpointing
        kept.append(kept_bytes(model, tokens))
        formula.append(activation_bytes_per_token(config, precision, checkpointing, hardware))
    assert (kept[1] - kept[0]) / tokens == pytest.approx(formula[1] - formula[0], rel=0.02)


def test_zero_splits_and_offload_moves() -> None:
    run = load_run_config(None)
    count = run.model.num_parameters()
    one, four = (estimate_memory(run, resolve(CONFIGS / "bf16_zero2.json", run, world, GPU)) for world in (1, 4))
    assert (one.masters, four.masters) == (4 * count, count)
    assert one.weights == four.weights == 2 * count
    away = estimate_memory(run, resolve(CONFIGS / "bf16_zero2_offload.json", run, 1, GPU))
    assert (away.masters, away.optimizer, away.states) == (0, 0, 2 * count)
    assert away.host == (4 + 8 + 4) * count
    assert away.peak < one.peak


def test_stage_3_splits_all_and_keeps_one_modules_weights_whole() -> None:
    run = load_run_config(None, ["model=1.1b"])
    count, model = run.model.num_parameters(), run.model
    two, eight = (estimate_memory(run, resolve(CONFIGS / "bf16_zero3.json", run, world, GPU)) for world in (2, 8))
    assert eight.masters == pytest.approx(count / 2) and eight.optimizer == pytest.approx(count)
    assert eight.weights == pytest.approx(2 * count / 8, rel=0.01)  # the norms are whole
    module = 3 * model.hidden_size * model.intermediate_size + model.vocab_size * model.hidden_size
    assert 2 * module < eight.gathered == two.gathered < 0.3 * 2 * count
    whole = resolve({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}, run, 8, GPU)
    assert estimate_memory(run, whole).gathered == 2 * 10**9  # by DeepSpeed's default as much as may live at once
    away = estimate_memory(run, resolve(CONFIGS / "bf16_zero3_offload.json", run, 8, GPU))
    assert (away.masters, away.optimizer, away.gradients, away.update_copy) == (0, 0, 0, 0)
    assert away.host == pytest.approx(22 * count / 8) and away.states < 0.05 * count


def test_largest_micro_batch_is_the_last_that_fits() -> None:
    run = load_run_config(None)
    resolved = resolve(CONFIGS / "bf16.json", run, 1, GPU)
    rows = largest_micro_batch(run, resolved, 8 * 2**30, 8.0)
    fits = [estimate_memory(run, resolved, size, 8.0).peak + 2**30 <= 8 * 2**30 for size in (rows, rows + 1)]
    assert fits == [True, False]
    assert largest_micro_batch(run, resolved, 2**30, 8.0) == 0


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * 2**30), ("24g", 24 * 10**9), ("512 MiB", 2**29), ("100", 100), ("1.5kb", 1500)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "many", "3 GiBs", "1.2.3G"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UserError, match="expected a size like 24GiB"):
        parse_bytes(text)


def test_plan_says_na_for_what_it_cannot_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan(CONFIGS / "bf16.json", None, ["model=tiny"], "24GiB") == 0
    lines = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert "1,606,784" in lines["model"]
    assert lines["time"].startswith("n/a")
    assert lines["steps"] == "n/a"
    assert lines["verdict"].startswith("fits:")


def test_plan_of_stage_3_says_what_is_whole_and_what_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan(CONFIGS / "bf16_zero3_offload.json", None, ["model=1.1b"], "8GiB", num_gpus=4) == 0
    lines = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert lines["model"].startswith("1,100,048,384")
    assert lines["model states"].startswith("0.51 GiB weights (in CPU memory) + 1.02 GiB fp32 masters (in CPU memory)")
    assert lines["gathered"].endswith("at once (estimated)") and "ZeRO stage 3" in lines["config"]


def test_plan_that_does_not_fit_ends_with_1_and_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["per_device_train_batch_size=4000", "max_steps=100"]
    assert run_plan(CONFIGS / "fp16.json", None, [*settings, "model=tiny"], "4GiB") == 1
    output = capsys.readouterr().out
    assert "does not fit" in output
    assert "use a micro-batch of" in output


def test_plan_measures_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["model=tiny", "model.vocab_size=256", "max_seq_length=32", "max_steps=100"]
    assert run_plan(CONFIGS / "fp32.json", None, settings) == 0
    output = capsys.readouterr().out
    assert "tokens/s (forward and backward, measured here)" in output
    assert "minutes" in output


def test_offload_is_explained() -> None:
    run = load_run_config(None)
    away, here = (resolve(CONFIGS / f"bf16_zero2{name}.json", run, 1, GPU) for name in ("_offload", ""))
    assert offload_line(run, away, 8.0, False).startswith("saves up to 0.38 GiB")
    assert offload_line(run, here, 8.0, False).startswith("would save up to 0.38 GiB")
    assert "saves nothing" in offload_line(run, here, 8.0, True)
    assert offload_line(run, resolve(CONFIGS / "lion.json", run, 1, GPU), 4.0, False).startswith("would save")
