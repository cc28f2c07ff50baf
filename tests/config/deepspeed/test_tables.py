"""Every entry of the linter's tables does what it says: types, refusals, what is dropped, and where that is said."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import Resolved, refusals, resolve, schema
from minimind.config.deepspeed.agreement import settle
from minimind.config.deepspeed.lint import Draft, check_names_and_types, check_params
from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.config.deepspeed.source import JsonSource, key_lines
from minimind.config.run import RunConfig, load_run_config
from tests.config.paths import leaves

GPU = Hardware("cuda", fp16=True, bf16=True, name="GPU")
ON = {"enabled": True}
COMPLETE = {
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
}
# What each kind takes, what that is read as, what it does not take, and how it is asked for
PROBES: dict[str, tuple[Any, Any, Any, str]] = {
    "bool": ("true", True, 7, "true or false"),
    "int": ("3", 3, 1.5, "a whole number"),
    "number": ("0.5", 0.5, "x", "a number"),
    "str": ("x", "x", 3, "a string"),
    "list": ([1], [1], "x", "a list [...]"),
    "names": (["x"], ["x"], [1], "a list of strings"),
    "count": ("3", 3, -1, "a whole number of at least 0"),
    "amount": ("0.5", 0.5, -0.5, "a number of at least 0"),
    "share": ("0.5", 0.5, 1.5, "a number from 0 to 1"),
}


def lint(config: dict[str, Any], *settings: str, run: RunConfig | None = None, **options: Any) -> Resolved:
    return resolve({**COMPLETE, **config}, run or load_run_config(None, settings), 2, GPU, **options)


def refusal(config: dict[str, Any], **options: Any) -> str:
    with pytest.raises(UserError) as refused:
        lint(config, **options)
    return str(refused.value)


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def checked(path: str, value: Any, kind: Any = None) -> Draft:
    """A draft with this one value after the check of types; ``kind``: that of a parameter, as ``path`` "owner.name"."""
    draft = Draft(JsonSource({}, "c.json"), nested(path, value), kind="pretrain")
    if kind is None:
        check_names_and_types(draft)
    else:
        section, _, name = path.partition(".params.")
        check_params(draft, section, {name: kind}, "X")
    return draft


PARAMS = [
    *((f"optimizer.params.{name}", kind) for entry in OPTIMIZERS.values() for name, kind in entry.params.items()),
    *((f"scheduler.params.{name}", kind) for kinds in schema.SCHEDULERS.values() for name, kind in kinds.items()),
]


def test_every_kind_takes_its_values_and_no_others() -> None:
    for path, kind in [*leaves(schema.TOP_LEVEL), *PARAMS]:
        of_params = kind if ".params." in path else None
        if isinstance(kind, tuple):
            right, wrong, wanted = [(name, name) for name in kind], "x", " or ".join(f'"{name}"' for name in kind)
        elif kind == "any":
            assert checked(path, 1.5, of_params).problems == checked(path, [True], of_params).problems == []
            continue
        else:
            taken, meaning, wrong, wanted = PROBES[kind]
            right = [(taken, meaning)]
        for value, meaning in right:
            draft = checked(path, value, of_params)
            assert draft.problems == [] and draft.get(path) == meaning, path
        draft = checked(path, wrong, of_params)
        assert draft.problems == [f"c.json: {path}: expected {wanted}, got {wrong!r}"] and draft.get(path) is None


def test_deepspeeds_own_defaults_are_of_our_kinds() -> None:
    """Of its pydantic models, and of its tables of constants."""
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import DeepSpeedMonitorConfig
    from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT_DEFAULT
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    defaults: dict[str, dict[str, Any]] = {
        "fp16": DeepSpeedFP16Config().model_dump(mode="json"),
        "bf16": DeepSpeedBF16Config().model_dump(mode="json"),
        "zero_optimization": DeepSpeedZeroConfig().model_dump(mode="json"),
        "compile": CompileConfig().model_dump(mode="json"),
        "activation_checkpointing": ACT_CHKPT_DEFAULT,
        "aio": AIO_DEFAULT_DICT,
        **DeepSpeedMonitorConfig().model_dump(mode="json"),
    }
    kinds = dict(leaves(schema.TOP_LEVEL))
    compared = 0
    for section, values in defaults.items():
        for name, value in values.items():
            path = f"{section}.{name}"
            if value is None or isinstance(value, dict) or path not in kinds:
                continue
            assert checked(path, value).problems == [], (path, value)
            if isinstance(value, bool):
                assert kinds[path] == "bool", path
            compared += 1
    assert compared > 60


def test_the_warmups_shapes_are_deepspeeds() -> None:
    import torch
    from deepspeed.runtime import lr_schedules

    for name in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        kinds = schema.SCHEDULERS[name]
        for shape in kinds["warmup_type"]:
            optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-3)
            counts = {"total_num_steps": 20} if "total_num_steps" in kinds else {}
            schedule = getattr(lr_schedules, name)(optimizer, warmup_type=shape, warmup_num_steps=4, **counts)
            assert schedule.warmup_type == shape  # it falls back, with a warning, from one that it doesn't know


# ------------------------------------------------------------------ what is refused, and what is dropped

# (a path of the JSON, the value that has no effect here)
DROPPED: list[tuple[str, Any]] = [
    ("hybrid_engine.enabled", True),
    ("compile.deepcompile", True),
    ("checkpoint.load_universal", True),
    ("checkpoint.use_node_local_storage", True),
    ("zero_optimization.elastic_checkpoint", True),
    ("zero_optimization.compute_grad_norm", False),
    ("zero_optimization.load_from_fp32_weights", False),
    ("zero_optimization.offload_optimizer.super_offload", True),
    ("fp16.fp16_master_weights_and_grads", True),
    ("bf16.bf16_master_weights_and_grads", True),
    ("bf16.bf16_optimizer_states", True),
    ("bf16.immediate_grad_update", True),
    ("checkpoint.writer", {"decoupled": True}),
    ("datastates_ckpt", {"host_cache_size": 1}),
    ("zero_optimization.zenflow", {"topk_ratio": 0.1}),
    ("data_efficiency.data_sampling.curriculum_learning", True),
    ("data_efficiency.data_sampling.dynamic_batching", True),
    ("data_efficiency.data_routing.random_ltd", True),
    ("prescale_gradients", True),
    ("gradient_predivide_factor", 2.0),
    ("tensor_parallel", {"autotp_size": 2}),
    ("tensor_parallel", {"tp_size": 2}),
    ("tensor_parallel", {"tp": {"tp_size": 2}}),
    ("zero_optimization.offload_optimizer.ratio", 0.5),
]


def dropping(path: str, value: Any) -> tuple[dict[str, Any], str]:
    """A config in which that value is there, and the path it is called by."""
    config: dict[str, Any] = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": not path.startswith("fp16")}}
    if path.startswith("data_efficiency."):
        _, outer, inner = path.split(".")
        config["data_efficiency"] = {"enabled": True, outer: {"enabled": True, inner: {"enabled": value}}}
        return config, f"{path}.enabled"
    for top, inside in nested(path, value).items():
        config[top] = {**config.get(top, {}), **inside} if isinstance(inside, dict) else inside
    return config, path


@pytest.mark.parametrize(("path", "value"), DROPPED)
def test_what_has_no_effect_is_dropped_and_said_at_its_line(path: str, value: Any, tmp_path: Path) -> None:
    config, called = dropping(path, value)
    file = tmp_path / "c.json"
    file.write_text(json.dumps({**COMPLETE, **config}, indent=1))
    place = f"{file}:{key_lines(file.read_text())[tuple(called.split('.'))][0]}"
    run = load_run_config(None)
    resolved = resolve(file, run, 2, GPU)
    (said,) = [each for each in resolved.findings if each.code in ("setting-dropped", "parallelism-dropped")]
    assert said.message.startswith(f"{place}: {called} ") and "is not used: " in said.message
    assert said.advice == "delete it"
    node: Any = resolved.config
    for name in path.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    assert node in (None, {})
    with pytest.raises(UserError) as refused:
        resolve(file, run, 2, GPU, strict=True)
    assert str(refused.value).startswith(f"{place}: {called}: ") and str(refused.value).endswith("delete it (--strict)")


def test_the_tables_of_what_is_dropped_are_those_that_are_tested() -> None:
    switches = {entry for entry in DROPPED if isinstance(entry[1], bool)}
    assert set(refusals._DROPPED) <= switches
    assert set(refusals._DROPPED_SECTIONS) <= {path for path, value in DROPPED if isinstance(value, dict)}
    assert all((f"data_efficiency.{outer}.{inner}", True) in switches for outer, inner in refusals._DATA_EFFICIENCY)


@pytest.mark.parametrize(
    "config",
    [
        *(nested(path, not value) for path, value in refusals._DROPPED),
        {"data_efficiency": {"enabled": False, "data_sampling": {"enabled": True, "curriculum_learning": ON}}},
        {"data_efficiency": {"enabled": True, "data_sampling": {"enabled": False, "dynamic_batching": ON}}},
        {"data_efficiency": {"enabled": True, "data_sampling": {"dynamic_batching": ON}}},
        {"tensor_parallel": {"tp_size": 1}},
        {"tensor_parallel": {"tp": {}}},
        {"tensor_parallel": {}},
        {"prescale_gradients": False, "gradient_predivide_factor": 1.0, "zero_optimization": {"stage": 1}},
        {"sequence_parallel_size": 1},
        {"managed_gradient_accumulation": True},
        {"gradient_allreduce_op": "mean"},
        {"zero_optimization": {"stage": 1, "legacy_stage1": False}},
    ],
)  # fmt: skip
def test_the_other_value_of_each_is_not_worth_a_word(config: dict[str, Any]) -> None:
    assert not {"setting-dropped", "parallelism-dropped"} & {each.code for each in lint(config).findings}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("expert_parallel.enabled", True),
        ("weight_quantization.enabled", True),
        ("zero_optimization.legacy_stage1", True),
        ("managed_gradient_accumulation", False),
        ("gradient_allreduce_op", "sum"),
    ],
)
def test_what_would_train_something_else_is_refused_at_its_key(path: str, value: Any) -> None:
    assert refusal(nested(path, value)).startswith(f"the DeepSpeed config: {path}: ")


@pytest.mark.parametrize(
    ("section", "reported", "codes", "word"),
    [
        ({"wandb": {"enabled": True}}, "none", ["monitor-off"], "`report_to: wandb`"),
        ({"wandb": {"enabled": True}}, "wandb", ["monitor-off"], 'delete "wandb"'),
        ({"comet": {"enabled": True}}, "wandb", ["monitor-off"], 'delete "comet"'),
        ({"comet": {"enabled": False}}, "none", [], ""),
        ({"tensorboard": {"enabled": True}}, "none", ["monitor-no-loss"], "minimind report"),
        ({"csv_monitor": {"enabled": True}}, "none", ["monitor-no-loss"], "minimind report"),
        ({"csv_monitor": {"enabled": False}}, "none", [], ""),
        ({"comms_logger": {"enabled": True}}, "none", ["monitor-silent"], '"verbose": true'),
        ({"comms_logger": {"enabled": True, "verbose": False}}, "none", ["monitor-silent"], '"verbose": true'),
        ({"comms_logger": {"enabled": True, "verbose": True}}, "none", [], ""),
        ({"comms_logger": {"enabled": False}}, "none", [], ""),
    ],
)
def test_each_monitor_is_said_to_do_what_it_does(
    section: dict[str, Any], reported: str, codes: list[str], word: str
) -> None:
    resolved = lint(section, f"report_to={reported}")
    assert [each.code for each in resolved.findings] == codes
    assert all(word in each.advice for each in resolved.findings)
    assert ("wandb" in resolved.config or "comet" in resolved.config) is False


@pytest.mark.parametrize(
    "name", ["Lamb", "Adafactor", "LBFGS", "SparseAdam", "MuAdam", "MuAdamW", "MuSGD", "OneBitAdam", "ZeroOneAdam", "X"]
)
def test_an_optimizer_that_is_not_here_is_refused_at_its_name(name: str) -> None:
    said = refusal({"optimizer": {"type": name}})
    assert said.startswith(f'the DeepSpeed config: optimizer.type: "{name}"')
    assert name == "X" or said.endswith(": use AdamW")


# ------------------------------------------------------------------ numbers with a bound


@pytest.mark.parametrize(
    ("fp16", "path"),
    [
        ({"loss_scale": -1}, "fp16.loss_scale"),
        ({"loss_scale": 0}, ""),
        ({"loss_scale": 1}, ""),
        ({"initial_scale_power": 127}, ""),
        ({"initial_scale_power": 128}, "fp16.initial_scale_power"),
        ({"initial_scale_power": 128, "loss_scale": 8}, ""),
        ({"initial_scale_power": 3, "min_loss_scale": 8}, ""),
        ({"initial_scale_power": 3, "min_loss_scale": 9}, "fp16.initial_scale_power"),
        ({"initial_scale_power": 3, "min_loss_scale": 9, "loss_scale": 8}, ""),
        ({"initial_scale_power": 0}, ""),
        ({"min_loss_scale": 65536}, ""),
        ({"min_loss_scale": 65537}, "fp16.initial_scale_power"),
        ({"min_loss_scale": 0}, "fp16"),
        ({"min_loss_scale": 1}, ""),
        ({"loss_scale_window": 0}, "fp16"),
        ({"loss_scale_window": 1}, ""),
        ({"hysteresis": 0}, "fp16.hysteresis"),
        ({"hysteresis": 1}, ""),
        ({"hysteresis": 0, "loss_scale": 8}, ""),
    ],
)
def test_bounds_of_the_loss_scale(fp16: dict[str, Any], path: str) -> None:
    config = {"fp16": {"enabled": True, **fp16}, "zero_optimization": {"stage": 1}}
    if path:
        assert refusal(config).startswith(f"the DeepSpeed config: {path}: ")
    else:
        resolved = lint(config)
        assert resolved.dynamic_scale == (not fp16.get("loss_scale"))
        assert {key: resolved.config["fp16"][key] for key in fp16} == fp16


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"zero_optimization": {"stage": -1}}, "zero_optimization.stage"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 0}}, "zero_optimization.reduce_bucket_size"),
        ({"zero_optimization": {"stage": 2, "allgather_bucket_size": -1}}, "zero_optimization.allgather_bucket_size"),
        ({"gradient_clipping": -0.1}, "gradient_clipping"),
        ({"train_batch_size": 0}, "train_batch_size"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -1}}}, "scheduler.params.warmup_num_steps"),
        ({"scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 1}}}, "scheduler.params"),
        (
            {"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 0}}},
            "scheduler.params.lr_range_test_step_size",
        ),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 0}}},
            "scheduler.params.total_num_steps",
        ),
    ],
)
def test_numbers_out_of_their_bounds_are_refused_at_their_key(config: dict[str, Any], path: str) -> None:
    assert f"the DeepSpeed config: {path}: " in refusal(config)


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 2, "reduce_bucket_size": 1, "allgather_bucket_size": 1}},
        {"gradient_clipping": 0.0},
        {"train_batch_size": 2, "gradient_accumulation_steps": 1},
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
        {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}}},
    ],
)
def test_the_least_numbers_are_taken(config: dict[str, Any]) -> None:
    assert lint(config).config.keys() >= config.keys() - {"optimizer"}


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_offload_at_stage_0_is_said_to_have_no_effect(device: str) -> None:
    resolved = lint({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": device}}})
    assert [each.code for each in resolved.findings] == ["section-unused"]
    assert not resolved.offload and "offload_optimizer" not in resolved.config["zero_optimization"]


@pytest.mark.parametrize(("device", "where"), [("cpu", True), ("none", False)])
def test_where_the_weights_live_at_stage_3(device: str, where: bool) -> None:
    zero = {"stage": 3, "offload_param": {"device": device}, "offload_optimizer": {"device": "cpu"}}
    assert lint({"bf16": {"enabled": True}, "zero_optimization": zero}).offload_param is where
    assert lint({}).offload_param is False


# ------------------------------------------------------------------ what is said, whatever it is


@pytest.mark.parametrize(("given", "fills"), [(None, 0.5), ("auto", 0.5), (0.5, 0.5), (2.0, 2.0)])
def test_the_jsons_value_stays_after_a_problem(given: Any, fills: float, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("max_grad_norm: 0.5\n")
    draft = Draft(JsonSource({}, "c.json"), {"gradient_clipping": given}, kind="pretrain")
    assert settle(draft, load_run_config(path), "gradient_clipping", "max_grad_norm") == fills
    assert draft.get("gradient_clipping") == given and len(draft.problems) == (given == 2.0)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_command_lines_precision_wins_over_the_other_section(name: str) -> None:
    other = "bf16" if name == "fp16" else "fp16"
    resolved = lint({other: {"enabled": True}, "zero_optimization": {"stage": 1}}, f"{name}=true")
    assert resolved.precision == name and resolved.config[other]["enabled"] is False
    assert [each.code for each in resolved.findings] == ["command-line-wins"]


LIKELY: dict[str, list[Any]] = {"bool": [True, False], "int": [0, 1, 2, 10**12], "number": [0, 0.5, 2.0]}


def junk(draw: random.Random, kinds: Any) -> Any:
    """Mostly a value that the linter takes, so that the checks after that of types have their say."""
    if isinstance(kinds, dict):
        return {name: junk(draw, kinds[name]) for name in draw.sample(list(kinds), min(2, len(kinds)))}
    if draw.random() < 0.9:
        return draw.choice(list(kinds) if isinstance(kinds, tuple) else LIKELY.get(kinds, ["auto", {"enabled": True}]))
    return draw.choice(["x", -1, 1.5, True, None, [], {}, [1], "auto"])


PROBLEM = re.compile(r"the DeepSpeed config: ([\w.]+): \S")


def test_whatever_is_found_has_a_code_a_place_and_an_advice() -> None:
    """A hundred kinds of config that nobody wrote: findings are whole, problems name a key that is there or known."""
    draw, seen = random.Random(1), set()
    tables = {**schema.TOP_LEVEL, **dict.fromkeys([*schema.REMOVED, "x"], "any")}
    for turn in range(1500):
        config = {key: junk(draw, tables[key]) for key in draw.sample(list(tables), 1 + turn % 3)}
        stage = draw.choice([0, 1, 2, 3])
        config |= {draw.choice(["fp16", "bf16"]): {"enabled": True}, "zero_optimization": {"stage": stage}}
        try:
            findings = lint(config).findings
        except UserError as error:
            lines = [line.removeprefix("  - ") for line in str(error).splitlines()]
            for line in lines[1:] or lines:
                found = PROBLEM.match(line)
                assert found and found[1].split(".")[0] in {*tables, *config}, line
            continue
        for each in findings:
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", each.code), each
            assert each.message and each.advice and "None" not in each.message, each
            seen.add(each.code)
    assert len(seen) >= 10


def test_the_lines_of_any_text_are_found_without_an_error() -> None:
    draw = random.Random(2)
    pieces = ["{", "}", "[", "]", ":", ",", '"a"', "'b'", "c", '"', "'", "#", "//", "/*", "*/", "\n", "1", "'''", "\\"]
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 14)))
        for places in key_lines(text).values():
            assert all(1 <= line <= text.count("\n") + 1 for line in places), text
    assert key_lines('{"a": 1]}, "b": {\n"c": 2}') == {("a",): [1]}
