"""The DeepSpeed JSON: the table of keys against the installed DeepSpeed, "auto", mismatches, batch triple, refusals."""

from __future__ import annotations

import inspect
import json
import logging
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import Resolved, resolve, schema
from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.config.deepspeed.source import key_lines
from minimind.config.run import RunConfig, load_run_config

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted((Path(__file__).parents[2] / "ds_configs").glob("*.json"))
GPU = Hardware("cuda", fp16=True, bf16=True, name="RTX 3090")
OLD_GPU = Hardware("cuda", fp16=True, bf16=False, name="V100")
CPU = Hardware("cpu", fp16=False, bf16=False, name="Xeon")
COUNT = 25_829_888
EXPLICIT = {
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
}


def fix(config: dict[str, Any], *settings: str, world: int = 1, hardware: Hardware = GPU, **options: Any) -> Resolved:
    """Resolve ``config`` on top of a complete one, so that only what a test is about can be wrong."""
    return resolve({**EXPLICIT, **config}, load_run_config(None, settings), world, hardware, **options)


def codes(resolved: Resolved) -> list[str]:
    return [finding.code for finding in resolved.findings]


def problem(config: dict[str, Any], *settings: str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        fix(config, *settings, **options)
    return str(caught.value)


def refused(directory: Path, config: dict[str, Any], **settings: Any) -> str:
    """The problems of ``config`` with a YAML of these settings, which stand from line 1 on."""
    path = directory / "run.yaml"
    path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
    with pytest.raises(UserError) as caught:
        resolve({**EXPLICIT, **config}, load_run_config(path), 1, GPU)
    return str(caught.value)


# ------------------------------------------------------------------ the table against the installed DeepSpeed


def model_names(model: Any) -> dict[str, Any]:
    """Field names and aliases of a pydantic model, nested models as dicts."""
    names: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner = [
            model_names(part)
            for part in (field.annotation, *get_args(field.annotation))
            if inspect.isclass(part) and hasattr(part, "model_fields")
        ]
        for key in {name, field.alias or name}:
            names[key] = inner[0] if inner else None
    return names


def table_names(kinds: dict[str, Any]) -> dict[str, Any]:
    return {key: table_names(kind) if isinstance(kind, dict) else None for key, kind in kinds.items()}


def test_sections_equal_the_installed_pydantic_models() -> None:
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import DeepSpeedMonitorConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    top = schema.TOP_LEVEL
    for ours, theirs in (
        (schema.FP16, DeepSpeedFP16Config),
        (schema.BF16, DeepSpeedBF16Config),
        (schema.ZERO, DeepSpeedZeroConfig),
        (schema.MONITORS, DeepSpeedMonitorConfig),
        (schema.COMPILE, CompileConfig),
        (top["comms_logger"], CommsLoggerConfig),
        (top["timers"]["throughput"], DeepSpeedThroughputTimerConfig),
    ):
        assert table_names(ours) == model_names(theirs), theirs.__name__


def test_removed_blocks_equal_the_installed_list() -> None:
    from deepspeed.runtime import config

    assert set(schema.REMOVED) == set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert set(schema.REMOVED_ZERO) == set(config._REMOVED_ZERO_CONFIG_KEYS)


class Recorder(dict):  # type: ignore[type-arg]
    """A config that remembers which keys were asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        recorder = self

        class Keys:
            def __contains__(self, key: object) -> bool:
                return key in recorder

            def __iter__(self) -> Any:
                return iter(recorder)

        return Keys()

    def __copy__(self) -> Recorder:
        return self


def test_top_level_keys_equal_what_deepspeed_asks_for() -> None:
    """Every key that DeepSpeedConfig looks up is in the table, and the table has no other."""
    from deepspeed.runtime.config import DeepSpeedConfig

    recorder = Recorder({"train_batch_size": 1})
    DeepSpeedConfig(recorder)
    # asked for inside a nested helper, or from the engine, with the same dict
    nested = {"data_sampling", "data_routing", "curriculum_learning", "dynamic_batching", "random_ltd"}
    # asked for only when torch.distributed is up
    asked = (recorder.asked | {"sequence_parallel_size"}) - set(schema.REMOVED) - nested
    assert asked - set(schema.TOP_LEVEL) == set()
    assert set(schema.TOP_LEVEL) - asked == set()


def test_other_sections_equal_the_installed_constants() -> None:
    from deepspeed.profiling import constants as profiling
    from deepspeed.runtime import constants as runtime
    from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT_DEFAULT
    from deepspeed.runtime.model_checkpointing import constants as checkpoint
    from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT

    top = schema.TOP_LEVEL
    assert set(top["aio"]) == set(AIO_DEFAULT_DICT)
    assert set(top["activation_checkpointing"]) == set(ACT_CHKPT_DEFAULT)
    names = (
        "ENABLED",
        "RECOMPUTE_FWD_FACTOR",
        "PROFILE_STEP",
        "MODULE_DEPTH",
        "TOP_MODULES",
        "DETAILED",
        "OUTPUT_FILE",
    )
    assert set(top["flops_profiler"]) == {getattr(profiling, f"FLOPS_PROFILER_{name}") for name in names}
    assert set(top["data_types"]) == {
        runtime.GRAD_ACCUM_DTYPE,
        runtime.PARAM_DTYPE,
        runtime.BUFFER_DTYPE,
        runtime.KEEP_IN_FP32_MODULES,
    }
    assert set(schema.CHECKPOINT) == {
        runtime.CHECKPOINT_TAG_VALIDATION,
        runtime.LOAD_UNIVERSAL_CHECKPOINT,
        runtime.USE_NODE_LOCAL_STORAGE_CHECKPOINT,
        runtime.CHECKPOINT_PARALLEL_WRITE,
        checkpoint.CHECKPOINT_SERIALIZATION,
        checkpoint.CHECKPOINT_WRITER,
    }


def test_scheduler_parameters_equal_the_installed_signatures() -> None:
    from deepspeed.runtime import lr_schedules

    assert set(schema.SCHEDULERS) == set(lr_schedules.VALID_LR_SCHEDULES)
    for name, kinds in schema.SCHEDULERS.items():
        signature = inspect.signature(getattr(lr_schedules, name).__init__)
        assert set(kinds) == set(signature.parameters) - {"self", "optimizer"}, name


# ------------------------------------------------------------------ the shipped files


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("world", [1, 2])
def test_shipped_json_resolves_without_a_finding_and_deepspeed_takes_it(path: Path, world: int) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    # the demo's JSONs leave every value to the demo's YAML; the others state theirs
    yaml = CONFIGS / "demo_pretrain.yaml" if path.stem.startswith("demo_") else None
    resolved = resolve(path, load_run_config(yaml), world, GPU)
    assert resolved.findings == []
    json.loads(path.read_text(encoding="utf-8"))  # plain JSON: other tools read it too
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # this process is one rank, so DeepSpeed must be shown one rank's batch
    parsed = DeepSpeedConfig({**resolved.config, "train_batch_size": resolved.micro_batch_size * resolved.accumulation})
    assert parsed.gradient_clipping == resolved.gradient_clipping == 1.0
    assert parsed.zero_optimization_stage == resolved.stage
    assert parsed.float16_config.enabled == (resolved.precision == "fp16")
    assert parsed.bfloat16_config.enabled == (resolved.precision == "bf16")
    if resolved.precision == "fp16":
        assert resolved.stage >= 1


def test_shipped_values_are_those_of_the_design() -> None:
    def load(name: str) -> Any:
        return json.loads(next(path for path in SHIPPED if path.stem == name).read_text(encoding="utf-8"))

    fp16 = load("fp16")
    assert fp16["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    recipe = {"lr": 2e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}  # the sweep: docs/LOG.md
    assert fp16["optimizer"] == {"type": "AdamW", "params": recipe}
    own = ("sft", "demo", "lion", "muon")
    same = [load(path.stem)["optimizer"] for path in SHIPPED if not path.stem.startswith(own)]
    assert [optimizer["params"] for optimizer in same] == [recipe] * 12
    assert sorted(optimizer["type"] for optimizer in same) == ["AdamW"] * 11 + ["AdamW8bit"]
    assert load("fp16_fixed_scale")["fp16"]["loss_scale"] == 1024
    assert load("sft_fp16")["fp16"]["initial_scale_power"] == 15
    assert load("sft_fp16")["optimizer"]["params"]["lr"] == load("sft_bf16")["optimizer"]["params"]["lr"] == 1e-4
    names = {path.stem for path in SHIPPED}
    assert names >= {
        "fp16",
        "bf16",
        "fp32",
        "fp16_zero2",
        "bf16_zero2",
        "fp16_zero2_offload",
        "bf16_zero2_offload",
        "bf16_zero3",
        "bf16_zero3_offload",
        "fp16_zero3_offload",
        "fp16_fixed_scale",
        "sft_fp16",
        "sft_bf16",
        "adamw8bit",
        "lion",
        "muon",
    }
    readme = (SHIPPED[0].parent / "README.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}.json`" not in readme] == []


# ------------------------------------------------------------------ reading


def test_hjson_is_read_as_deepspeed_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{ // comment\n  # another\n  train_micro_batch_size_per_gpu: 4,\n  "bf16": {"enabled": true,},\n}')
    assert resolve(path, RunConfig(), 1, GPU).micro_batch_size == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1\n  "b" 2\n}', r"c.json:3:\d+: not valid JSON"),
        ("[1]", "c.json:1:1: not valid JSON: the top level must be an object"),
        (
            '{"fp16": {"enabled": true,\n "enabled": false}}',
            r'c.json:2: duplicate key "fp16.enabled" \(first at line 1\)',
        ),
        ('{\n"gradient_acumulation_steps": 8}', r'c.json:2: .*did you mean "gradient_accumulation_steps"'),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        resolve(path, RunConfig(), 1, GPU)


def test_missing_file() -> None:
    with pytest.raises(UserError, match=r"nope.json: no such DeepSpeed config"):
        resolve("nope.json", RunConfig(), 1, GPU)


def test_lines_of_keys() -> None:
    text = (
        '{\n "a": "x: {", // "no": 1\n b: {\n  "c": [1, {"d": 2}, {"d": 3}],\n'
        "  \"e\": '''q'''\n },\n /* \"f\":\n 1 */ \"g\": null}"
    )
    lines = {path: places for path, places in key_lines(text).items() if not any("[" in part for part in path)}
    assert {path: places[0] for path, places in lines.items()} == {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 4,
        ("b", "e"): 5,
        ("g",): 8,
    }
    assert all(len(places) == 1 for places in key_lines(text).values())


def test_the_callers_dict_is_left_alone() -> None:
    config = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}
    before = json.dumps(config)
    fix(config)
    assert json.dumps(config) == before


# ------------------------------------------------------------------ names, types, refusals


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"gradient_acumulation_steps": 8}, ["gradient_accumulation_steps", "silently ignore"]),
        ({"grad_clipping": 1}, ["gradient_clipping"]),
        ({"bf_16": {"enabled": True}}, ['"bf16"']),
        ({"fp16": {"enabled": True, "initial_scale": 3}}, ['"initial_scale_power"', "refuse"]),
        ({"zero_optimization": {"stage": 1, "reduce_bucket": 1}}, ['"reduce_bucket_size"']),
        ({"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}}, ['"device"']),
        ({"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}}, ["not a parameter of this trainer's AdamW"]),
        ({"optimizer": {"type": "AdamWW"}}, ['did you mean "AdamW"']),
        ({"optimizer": {"type": "OneBitAdam"}}, ["removed the 1-bit"]),
        ({"zero_optimization": {"gradient_clipping": 1}}, ["at the top level", "refuse"]),
    ],
)
def test_unknown_names(config: dict[str, Any], words: list[str]) -> None:
    message = problem(config)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"fp16": {"enabled": "yes please"}}, "expected true or false"),
        ({"train_batch_size": 7.5}, "expected a whole number"),
        ({"fp16": {"enabled": True, "hysteresis": 1.5}}, "expected a whole number, got 1.5"),
        ({"fp16": 3}, "expected an object"),
        ({"communication_data_type": "float32"}, '"fp16" or "bf16" or "fp32"'),
        ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}}, "expected two numbers"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": -1}}}, "must be above 0"),
        ({"gradient_clipping": -1}, "negative"),
        ({"fp16": {"enabled": True, "hysteresis": 0}}, "never lowers the scale"),
        ({"fp16": {"enabled": True, "initial_scale_power": 1, "min_loss_scale": 8}}, "below min_loss_scale"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "both enabled"),
        ({"data_types": {"param_dtype": "fp16"}}, "contradicts"),
    ],
)
def test_wrong_values(config: dict[str, Any], word: str) -> None:
    assert word in problem(config)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"zero_optimization": {"stage": 4}}, "expected 0, 1, 2 or 3"),
        ({"zero_optimization": {"stage": 1, "stage3_max_reuse_distance": 1, "max_reuse_distance": 1}}, "keep one"),
        ({"torch_autocast": {"enabled": True, "dtype": "fp32"}}, 'expected "bfloat16" or "float16"'),
        ({"gradient_allreduce_op": "sum"}, "mean over ranks"),
        ({"managed_gradient_accumulation": False}, "false is not supported"),
        ({"scheduler": {"type": "CosineAnnealingLR"}}, "torch schedulers by name fail"),
    ],
)
def test_refusals_state_their_reason(config: dict[str, Any], word: str) -> None:
    assert word in problem(config)


@pytest.mark.parametrize(
    ("config", "code", "word"),
    [
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/d"}}},
            "setting-dropped",
            "keeps the states in CPU",
        ),
        ({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "section-unused", "from stage 1"),
        ({"zero_optimization": {"stage": 1, "zenflow": {"topk_ratio": 0.1}}}, "setting-dropped", "in its own step"),
        ({"tensor_parallel": {"autotp_size": 2}}, "parallelism-dropped", "size 2"),
    ],
)
def test_what_only_places_the_work_is_dropped_aloud(config: dict[str, Any], code: str, word: str) -> None:
    resolved = fix(config)
    (finding,) = [finding for finding in resolved.findings if finding.code == code]
    assert word in finding.message
    assert "tensor_parallel" not in resolved.config
    zero = resolved.config["zero_optimization"]
    assert "zenflow" not in zero and zero.get("offload_optimizer", {}).get("device", "cpu") == "cpu"
    assert resolved.offload == ("offload_optimizer" in zero)


def test_every_problem_is_in_one_message(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.5,
            "amp": {"enabled": True},
            "gradient_cliping": 1,
            "train_batch_size": 10,
        },
        per_device_train_batch_size=8,
        learning_rate=3e-4,
        max_grad_norm=1.0,
        adam_beta2=0.95,
    )
    assert message.startswith("6 problems")
    for part in (
        "amp",
        "gradient_cliping",
        "4 in the JSON but per_device_train_batch_size is 8",
        "0.001 in the JSON but learning_rate",
        f"0.5 in the JSON but max_grad_norm is 1 in {tmp_path / 'run.yaml'}:3",
        "0.999 in the JSON but adam_beta2 is 0.95",
    ):
        assert part in message


# A JSON, a setting that contradicts it, and what the resolved config has of it when the command line says it
CONFLICTS: list[tuple[dict[str, Any], str, Any, Any]] = [
    ({}, "learning_rate", 3e-4, lambda resolved: resolved.optimizer.params["lr"]),
    ({}, "adam_beta2", 0.95, lambda resolved: resolved.optimizer.params["betas"][1]),
    ({}, "weight_decay", 0.1, lambda resolved: resolved.optimizer.params["weight_decay"]),
    ({}, "adam_epsilon", 1e-6, lambda resolved: resolved.optimizer.params["eps"]),
    ({}, "max_grad_norm", 0.5, lambda resolved: resolved.gradient_clipping),
    ({"train_micro_batch_size_per_gpu": 4}, "per_device_train_batch_size", 2, lambda r: r.micro_batch_size),
    ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps", 2, lambda r: r.accumulation),
    ({"bf16": {"enabled": False}}, "bf16", True, lambda resolved: resolved.precision == "bf16"),
    ({"fp16": {"enabled": True}}, "bf16", True, lambda resolved: resolved.precision == "bf16"),
    ({"fp16": {"enabled": True}}, "fp16", False, lambda resolved: resolved.precision == "fp16"),
    (
        {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100}}},
        "max_steps",
        11,
        lambda resolved: resolved.scheduler["params"]["total_num_steps"],
    ),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}},
        "warmup_steps",
        11,
        lambda resolved: resolved.scheduler["params"]["warmup_num_steps"],
    ),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}},
        "warmup_ratio",
        0.1,
        lambda resolved: (
            resolved.with_total_steps(50, load_run_config(None, ["warmup_ratio=0.1"])).scheduler["params"][
                "warmup_num_steps"
            ]
            / 50
        ),
    ),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}},
        "lr_scheduler_type",
        "cosine",
        lambda resolved: resolved.scheduler or "cosine",
    ),
]


@pytest.mark.parametrize(("config", "name", "value", "taken"), CONFLICTS)
def test_a_conflict_is_called_by_where_it_comes_from(
    config: dict[str, Any], name: str, value: Any, taken: Any, tmp_path: Path
) -> None:
    """The command line wins over the JSON, which is said; the YAML does not, which is a problem at its line."""
    text = f"{name}={json.dumps(value)}"
    resolved = fix(config, text)
    (said,) = [finding for finding in resolved.findings if finding.code == "command-line-wins"]
    assert f"--set {text}" in said.message and "YAML" not in said.message
    assert taken(resolved) == value
    message = refused(tmp_path, config, seed=1, **{name: value})
    assert f"{name} is " in message and f"{tmp_path / 'run.yaml'}:2" in message and "--set" not in message


def test_an_option_wins_over_a_scheduler_and_is_called_by_its_name() -> None:
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 2}}
    run = load_run_config(None, [], {"max_steps": 11})
    resolved = resolve({**EXPLICIT, "scheduler": scheduler}, run, 1, GPU).with_total_steps(11, run)
    assert resolved.scheduler is not None and resolved.scheduler["params"]["total_num_steps"] == 11
    (said,) = [finding for finding in resolved.findings if finding.code == "command-line-wins"]
    assert "max_steps is 11 by --max-steps" in said.message
    assert not {"run-inside-warmup", "scheduler-other-length"} & set(codes(resolved))


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
@pytest.mark.parametrize(("stated", "warmup"), [({"warmup_num_steps": 500}, 500), ({}, 1000)])
def test_a_run_that_ends_inside_a_schedulers_warmup_is_said(kind: str, stated: dict[str, int], warmup: int) -> None:
    run = load_run_config(None)
    resolved = fix({"scheduler": {"type": kind, "params": stated}}).with_total_steps(11, run)
    (found,) = [finding for finding in resolved.findings if finding.code == "run-inside-warmup"]
    assert found.values == {"total_steps": 11, "warmup_steps": warmup}
    assert "11 steps, warmup" in found.message and f"{warmup:,}" in found.message


@pytest.mark.parametrize(
    ("settings", "total", "warmup"),
    [
        (["warmup_steps=500"], 11, 500),
        (["warmup_steps=500"], 1, 500),
        (["warmup_steps=11"], 11, 11),
        (["warmup_steps=10"], 11, None),
        (["warmup_ratio=0.99"], 11, 11),
        ([], 1, None),
        ([], 11, None),
        (["warmup_steps=0"], 1, None),
    ],
)
def test_a_run_that_ends_inside_its_own_warmup_is_said(settings: list[str], total: int, warmup: int | None) -> None:
    run = load_run_config(None, settings)
    found = [f for f in fix({}, *settings).with_total_steps(total, run).findings if f.code == "run-inside-warmup"]
    assert [finding.values["warmup_steps"] for finding in found] == ([] if warmup is None else [warmup])
    assert all(f"--set {settings[0]}" in finding.message for finding in found)


@pytest.mark.parametrize(("planned", "words"), [(5, "at its lowest"), (500, "before the decay does")])
def test_a_schedulers_other_length_than_the_runs_is_said(planned: int, words: str) -> None:
    params = {"total_num_steps": planned, "warmup_num_steps": 2}
    resolved = fix({"scheduler": {"type": "WarmupCosineLR", "params": params}})
    found = resolved.with_total_steps(50, load_run_config(None)).findings[-1]
    assert found.code == "scheduler-other-length" and words in found.message


def test_a_section_that_is_missing_states_nothing(tmp_path: Path) -> None:
    """As in Hugging Face: the YAML's flag fills it. Only two explicit values can contradict each other."""
    for config in ({}, {"bf16": {}}, {"bf16": {"enabled": "auto"}}, {"fp16": {"enabled": False}}):
        path = tmp_path / "run.yaml"
        path.write_text("bf16: true\n")
        resolved = resolve({**EXPLICIT, **config}, load_run_config(path), 1, GPU)
        assert resolved.precision == "bf16" and "command-line-wins" not in codes(resolved)
    assert (
        resolve({**EXPLICIT, "bf16": {"enabled": True}}, load_run_config(None, ["fp16=false"]), 1, GPU).precision
        == "bf16"
    )
    message = refused(tmp_path, {"fp16": {"enabled": True}}, bf16=True)
    assert "fp16.enabled: true in the JSON but bf16 is true in" in message and "false" not in message
    message = refused(tmp_path, {"bf16": {"enabled": False}}, bf16=True)
    assert "bf16.enabled: false in the JSON but bf16 is true in" in message


def test_a_setting_that_a_scheduler_leaves_no_room_for_is_said() -> None:
    resolved = fix({"scheduler": {"type": "WarmupLR", "params": {}}}, "min_lr_ratio=0.2")
    assert "setting-unused" in codes(resolved)


def junk_section(rng: random.Random, kinds: Any) -> Any:
    """A value of no sense, or a section with such values."""
    junk = ["x", -1, 0, 1.5, True, None, [], {}, [1], "auto", 10**12, {"enabled": "x"}, float("nan")]
    if not isinstance(kinds, dict) or rng.random() < 0.3:
        return rng.choice(junk)
    return {name: rng.choice(junk) for name in rng.sample(list(kinds), min(3, len(kinds)))}


def test_junk_anywhere_is_a_user_error_or_runs_but_never_crashes() -> None:
    rng, outcomes = random.Random(0), set()
    for turn in range(1500):
        few = turn % 2 == 0  # one bad key may still run; many never do
        keys = rng.sample(list(schema.TOP_LEVEL), 1 if few else 3)
        config = {key: junk_section(rng, schema.TOP_LEVEL[key]) for key in keys}
        if not few:
            name = rng.choice([*OPTIMIZERS, "x", 3])
            known = dict(OPTIMIZERS[name].params) if name in OPTIMIZERS else None
            config["optimizer"] = {
                "type": name,
                "params": junk_section(rng, known),
            }
            name = rng.choice([*schema.SCHEDULERS, "x", None])
            config["scheduler"] = {"type": name, "params": junk_section(rng, schema.SCHEDULERS.get(str(name)))}
        try:
            resolve(config, RunConfig(), rng.choice([1, 2, 3]), rng.choice([GPU, CPU]))
            outcomes.add("runs")
        except UserError:
            outcomes.add("refused")
    assert outcomes == {"runs", "refused"}


# ------------------------------------------------------------------ precision, ZeRO, clipping


@pytest.mark.parametrize("zero", [{}, {"zero_optimization": {"stage": 0}}])
def test_fp16_at_stage_0_runs_as_stage_1_and_says_why(zero: dict[str, Any]) -> None:
    for precision, reason in (("fp16", "65,536"), ("bf16", "0.744")):
        resolved = fix({precision: {"enabled": True}, **zero})
        assert (resolved.precision, resolved.stage) == (precision, 1)
        assert resolved.config["zero_optimization"]["stage"] == 1
        (finding,) = resolved.findings
        assert finding.code == f"{precision}-stage0"
        assert reason in finding.message
    assert fix(zero).stage == 0


@pytest.mark.parametrize(
    ("precision", "given", "zero", "runs", "found"),
    [
        ("bf16", None, {"stage": 0}, (1, "fp32"), ["bf16-stage0"]),
        ("bf16", "torch.float32", {"stage": 0}, (1, "fp32"), ["bf16-stage0"]),
        ("bf16", "bfloat16", {"stage": 0}, (1, "bf16"), ["bf16-stage0"]),
        ("bf16", None, {"stage": 1}, (1, "fp32"), []),
        ("bf16", "fp16", {"stage": 1}, (1, "fp32"), ["accumulation-dtype"]),
        ("bf16", None, {"stage": 2}, (2, "fp32"), []),
        ("bf16", None, {"stage": 1, "offload_optimizer": {"device": "cpu"}}, (2, "fp32"), ["fp32-accumulation-stage2"]),
        ("bf16", "bf16", {"stage": 1, "offload_optimizer": {"device": "cpu"}}, (1, "bf16"), []),
        ("fp16", None, {"stage": 1}, (1, None), []),
        ("fp16", "half", {"stage": 1}, (1, None), []),
        ("fp16", "bf16", {"stage": 1}, (1, None), ["accumulation-dtype"]),
        ("fp16", "float", {"stage": 1}, (2, "fp32"), ["fp32-accumulation-stage2"]),
        ("fp16", "float32", {"stage": 0}, (2, "fp32"), ["fp16-stage0", "fp32-accumulation-stage2"]),
        ("fp32", "float32", {"stage": 0}, (0, None), []),
        ("fp32", "bf16", {"stage": 1}, (1, None), ["accumulation-dtype"]),
    ],
)
def test_gradients_accumulate_in_what_deepspeed_really_has(
    precision: str, given: str | None, zero: dict[str, Any], runs: tuple[int, str | None], found: list[str]
) -> None:
    """test_applied_update.py proves each of these layouts; others are never emitted."""
    config: dict[str, Any] = {"zero_optimization": zero}
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if given is not None:
        config["data_types"] = {"grad_accum_dtype": given}
    resolved = fix(config)
    assert (resolved.stage, resolved.config.get("data_types", {}).get("grad_accum_dtype")) == runs
    assert resolved.config["zero_optimization"]["stage"] == resolved.stage
    assert codes(resolved) == found


def test_the_overflow_check_of_bf16_stays_on() -> None:
    resolved = fix({"bf16": {"enabled": True, "check_grad_overflow": False}, "zero_optimization": {"stage": 2}})
    assert codes(resolved) == ["overflow-check"]
    assert "check_grad_overflow" not in resolved.config["bf16"]


@pytest.mark.parametrize(("hardware", "better"), [(CPU, "fp32.json"), (Hardware("cpu", False, True), "bf16.json")])
def test_fp16_without_hardware_names_the_json_to_use(hardware: Hardware, better: str) -> None:
    message = problem({"fp16": {"enabled": True}}, hardware=hardware)
    assert f"ds_configs/{better}" in message
    assert "--emulate-fp16" in message
    assert "\n" not in message
    emulated = fix({"fp16": {"enabled": True}}, hardware=hardware, emulate_fp16=True)
    assert (
        emulated.precision
        == fix({"fp16": {"enabled": True}}, "emulate_fp16=true", hardware=hardware).precision
        == "fp16"
    )
    assert "fp16-emulated" in codes(emulated)


def test_bf16_is_slow_where_it_is_emulated() -> None:
    assert "bf16-slow" in codes(fix({"bf16": {"enabled": True}}, hardware=OLD_GPU))
    assert "bf16-slow" not in codes(fix({"bf16": {"enabled": True}}))


@pytest.mark.parametrize(
    ("config", "settings", "hardware", "precision"),
    [
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, [], GPU, "bf16"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, [], OLD_GPU, "fp16"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, [], CPU, "fp32"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, ["fp16=true"], GPU, "fp16"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, ["bf16=false"], GPU, "fp16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, [], GPU, "fp16"),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": "auto"}}, [], GPU, "bf16"),
        ({"bfloat16": {"enabled": True}}, [], GPU, "bf16"),
    ],
)
def test_auto_precision(config: dict[str, Any], settings: list[str], hardware: Hardware, precision: str) -> None:
    resolved = fix(config, *settings, hardware=hardware)
    assert resolved.precision == precision
    assert [name for name in ("fp16", "bf16") if resolved.config.get(name, {}).get("enabled") is True] == (
        [precision] if precision != "fp32" else []
    )


@pytest.mark.parametrize(("given", "warned"), [(5e8, True), (COUNT + 1, True), (COUNT, False), (1e6, False)])
def test_buckets_are_capped_at_the_model(given: float, warned: bool) -> None:
    resolved = fix({"zero_optimization": {"stage": 2, "reduce_bucket_size": given}})
    assert resolved.config["zero_optimization"]["reduce_bucket_size"] == min(given, COUNT)
    assert resolved.config["zero_optimization"]["allgather_bucket_size"] == COUNT
    assert codes(resolved) == (["bucket-capped"] if warned else [])


def test_auto_bucket_is_hugging_faces() -> None:
    resolved = fix({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "allgather_bucket_size": "auto"}})
    assert resolved.config["zero_optimization"]["reduce_bucket_size"] == 512 * 512


@pytest.mark.parametrize(("power", "warned"), [(16, False), (20, False), (21, True), (32, True)])
def test_initial_scale_power_above_20_is_warned(power: int, warned: bool) -> None:
    config = {"fp16": {"enabled": True, "initial_scale_power": power}, "zero_optimization": {"stage": 1}}
    assert ("scale-power-high" in codes(fix(config))) == warned
    fixed = {
        "fp16": {"enabled": True, "initial_scale_power": power, "loss_scale": 8},
        "zero_optimization": {"stage": 1},
    }
    assert codes(fix(fixed)) == []


@pytest.mark.parametrize(
    ("value", "settings", "clipping", "found"),
    [
        (None, [], 1.0, ["clip-default"]),
        (None, ["max_grad_norm=0.5"], 0.5, []),
        ("auto", ["max_grad_norm=0.5"], 0.5, []),
        ("auto", [], 1.0, []),
        (0, [], 0.0, []),
        (2, ["max_grad_norm=2.0"], 2.0, []),
    ],
)
def test_clipping_is_always_explicit(value: Any, settings: list[str], clipping: float, found: list[str]) -> None:
    resolved = fix({"gradient_clipping": value}, *settings)
    assert resolved.gradient_clipping == resolved.config["gradient_clipping"] == clipping
    assert codes(resolved) == found


def test_offload_old_and_new_spelling() -> None:
    for zero in ({"stage": 2, "cpu_offload": True}, {"stage": 1, "offload_optimizer": {"device": "cpu"}}):
        resolved = fix({"zero_optimization": zero})
        assert resolved.offload
        assert resolved.config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    resolved = fix({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})
    assert codes(resolved) == ["section-unused"]
    assert "offload_param" not in resolved.config["zero_optimization"]
    assert not fix({"zero_optimization": True}).offload


# ------------------------------------------------------------------ the batch triple


@pytest.mark.parametrize(
    ("config", "settings", "world", "expected"),
    [
        ({}, [], 1, (8, 1)),
        ({"train_micro_batch_size_per_gpu": 4}, [], 2, (4, 1)),
        ({"train_batch_size": 32}, [], 2, (16, 1)),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}, [], 2, (4, 4)),
        ({"train_batch_size": 32, "gradient_accumulation_steps": 2}, [], 2, (8, 2)),
        (
            {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4},
            [],
            2,
            (4, 4),
        ),
        ({"gradient_accumulation_steps": 4}, [], 1, (8, 4)),
        (
            {
                "train_batch_size": "auto",
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
            },
            ["per_device_train_batch_size=3", "gradient_accumulation_steps=5"],
            2,
            (3, 5),
        ),
        (
            {"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"},
            [],
            4,
            (8, 1),
        ),
        ({"train_batch_size": 32}, ["per_device_train_batch_size=2"], 2, (2, 8)),
    ],
)
def test_batch_triple(config: dict[str, Any], settings: list[str], world: int, expected: tuple[int, int]) -> None:
    resolved = fix(config, *settings, world=world)
    assert (resolved.micro_batch_size, resolved.accumulation) == expected
    assert resolved.config["train_batch_size"] == resolved.train_batch_size == expected[0] * expected[1] * world
    ranks = "1 rank" if world == 1 else f"{world} ranks"
    line = resolved.explain_batch(100)
    assert f"{expected[0]} micro x {expected[1]} accumulation x {ranks} = " in line
    assert f"= {resolved.train_batch_size * 100:,} tokens per step" in line


@pytest.mark.parametrize(
    ("config", "world", "words"),
    [
        ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, 1, ["not divisible", "use 8 or 12"]),
        ({"train_batch_size": 3}, 2, ["not divisible", "use 2 or 4"]),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 3},
            1,
            ["8 x accumulation 3 x 1 rank(s) = 24", "accumulation would be 8"],
        ),
        ({"train_micro_batch_size_per_gpu": 0}, 1, ["must be positive"]),
    ],
)
def test_batches_that_do_not_multiply(config: dict[str, Any], world: int, words: list[str]) -> None:
    message = problem(config, world=world)
    assert all(word in message for word in words), message


# ------------------------------------------------------------------ optimizer and scheduler


def test_optimizer_auto_is_filled_from_the_yaml_and_leaves_the_dict() -> None:
    auto = {"type": "adamw", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
    resolved = fix(
        {"optimizer": auto}, "learning_rate=3e-4", "adam_beta2=0.95", "weight_decay=0.1", "adam_epsilon=1e-6"
    )
    assert resolved.optimizer.type == "AdamW"
    assert resolved.optimizer.params == {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    assert "optimizer" not in resolved.config
    assert resolved.config["zero_allow_untested_optimizer"] is True
    defaults = fix({"optimizer": auto}, defaults={"learning_rate": 1e-4})
    assert defaults.optimizer.params == {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    assert codes(defaults) == ["optimizer-values"]


def test_no_optimizer_section_means_adamw_from_the_yaml() -> None:
    resolved = resolve({"gradient_clipping": 1.0}, load_run_config(None, ["learning_rate=3e-4"]), 1, GPU)
    assert (resolved.optimizer.type, resolved.optimizer.params["lr"]) == ("AdamW", 3e-4)
    assert codes(resolved) == ["optimizer-default", "optimizer-values"]


@pytest.mark.parametrize(
    ("optimizer", "kind", "params"),
    [
        ({"type": "AdamW"}, "AdamW", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}),
        ({"type": "AdamW", "params": {"torch_adam": True}}, "AdamW", {"weight_decay": 0.01}),
        ({"type": "Adam", "params": {"torch_adam": True, "adam_w_mode": False}}, "Adam", {"weight_decay": 0.0}),
        ({"type": "Adam", "params": {"adam_w_mode": False}}, "Adam", {}),
        ({"type": "AdamW", "params": {"adam_w_mode": False}}, "AdamW", {}),
        ({"type": "Lion"}, "Lion", {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.0}),
        ({"type": "Lion", "params": {"betas": "auto"}}, "Lion", {"betas": (0.9, 0.99)}),
        ({"type": "Muon", "params": {"lr": 0.02}}, "Muon", {"betas": (0.9, 0.95), "eps": 1e-10}),
    ],
)
def test_what_is_absent_is_what_deepspeed_takes(optimizer: dict[str, Any], kind: str, params: dict[str, Any]) -> None:
    """runtime/engine.py ``_configure_basic_optimizer`` and the classes' own defaults."""
    resolved = fix({"optimizer": optimizer})
    assert resolved.optimizer.type == kind
    assert {name: resolved.optimizer.params[name] for name in params} == params
    ignored = optimizer == {"type": "AdamW", "params": {"adam_w_mode": False}}
    assert ("adam_w_mode false is not used" in " ".join(f.message for f in resolved.findings)) == ignored


def test_absent_weight_decay_is_deepspeeds_zero_and_said() -> None:
    resolved = fix({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
    assert resolved.optimizer.params["weight_decay"] == 0.0
    assert codes(resolved) == ["optimizer-values"]


@pytest.mark.parametrize(
    ("name", "params", "kind"),
    [
        ("Adam", {}, "AdamW"),
        ("Adam", {"adam_w_mode": False}, "Adam"),
        ("AdamW8bit", {}, "AdamW8bit"),
        ("LION", {}, "Lion"),
        ("muon", {"momentum": 0.9}, "Muon"),
    ],
)
def test_optimizer_types(name: str, params: dict[str, Any], kind: str) -> None:
    assert fix({"optimizer": {"type": name, "params": {"lr": 1e-3, **params}}}).optimizer.type == kind


def test_scheduler_auto_is_filled_in_two_steps() -> None:
    params = dict.fromkeys(("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")
    run = load_run_config(None, ["warmup_ratio=0.1"])
    first = resolve({**EXPLICIT, "scheduler": {"type": "WarmupDecayLR", "params": params}}, run, 1, GPU)
    assert first.scheduler is not None
    assert (first.scheduler["params"]["warmup_min_lr"], first.scheduler["params"]["warmup_max_lr"]) == (0, 1e-3)
    second = first.with_total_steps(200, run)
    assert second.scheduler == second.config["scheduler"]
    assert second.scheduler is not None
    assert second.scheduler["params"] == {
        "total_num_steps": 200,
        "warmup_min_lr": 0,
        "warmup_max_lr": 1e-3,
        "warmup_num_steps": 20,
    }
    assert first.scheduler["params"]["total_num_steps"] == "auto"
    assert fix({}).with_total_steps(200, run).scheduler is None


def test_scheduler_against_the_yaml(tmp_path: Path) -> None:
    scheduler = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 1e-3}}}
    assert "lr_scheduler_type is cosine" in refused(tmp_path, scheduler, lr_scheduler_type="cosine")
    assert "warmup_steps is 7" in refused(tmp_path, scheduler, warmup_steps=7)
    assert fix(scheduler, "lr_scheduler_type=constant").scheduler is not None


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("WarmupLR", {}),
        ("WarmupLR", {"warmup_type": "linear", "warmup_min_lr": 1e-4}),
        ("WarmupDecayLR", {"total_num_steps": 20}),
        ("WarmupCosineLR", {"total_num_steps": 20}),
        ("WarmupCosineLR", {"total_num_steps": 20, "warmup_type": "linear", "warmup_min_ratio": 0.1}),
    ],
)
def test_what_a_finding_says_of_steps_1_and_2_is_what_deepspeed_does(kind: str, params: dict[str, Any]) -> None:
    import torch
    from deepspeed.runtime import lr_schedules

    resolved = fix({"scheduler": {"type": kind, "params": {"warmup_num_steps": 4, **params}}})
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-3)
    assert resolved.scheduler is not None
    schedule = getattr(lr_schedules, kind)(optimizer, **resolved.scheduler["params"])
    rates = [optimizer.param_groups[0]["lr"]]
    schedule.step()
    rates.append(optimizer.param_groups[0]["lr"])
    (finding,) = resolved.findings
    said = finding.message
    assert (
        f"both train at learning rate {rates[0]:g}" in said
        if rates[0] == rates[1] and "both" in said
        else (f"at learning rates {rates[0]:g} and {rates[1]:g}" in said)
    )
    assert ("logarithmic" in said) == (params.get("warmup_type", "log") == "log")


# ------------------------------------------------------------------ monitors, unused sections, "auto" without a filler


def test_monitors() -> None:
    resolved = fix({"wandb": {"enabled": True}, "csv_monitor": {"enabled": True, "output_path": "x"}})
    assert codes(resolved) == ["monitor-off", "monitor-no-loss"]
    assert "wandb" not in resolved.config
    assert resolved.config["csv_monitor"]["enabled"] is True


def test_unused_sections_are_dropped_and_said() -> None:
    resolved = fix({"activation_checkpointing": {"partition_activations": True}, "autotuning": {"enabled": False}})
    assert codes(resolved) == ["section-unused", "section-unused"]
    assert "activation_checkpointing" not in resolved.config


def test_auto_that_nobody_fills_falls_back_to_deepspeeds_default_aloud() -> None:
    resolved = fix({"steps_per_print": "auto", "zero_optimization": {"stage": 1, "overlap_comm": "auto"}})
    assert codes(resolved) == ["auto-default", "auto-default"]
    assert "auto" not in json.dumps(resolved.config)


def test_comment_keys_and_nulls_are_harmless() -> None:
    assert codes(fix({"_comment": "mine", "//": "x", "communication_data_type": None})) == []


def test_a_transformers_test_config_runs_unchanged() -> None:
    """The shape of transformers/tests/deepspeed/ds_config_zero2.json: every "auto" that Hugging Face knows."""
    config = {
        "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "scheduler": {
            "type": "WarmupLR",
            "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto"),
        },
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
            "allgather_bucket_size": 2e8,
            "reduce_bucket_size": 2e8,
            "contiguous_gradients": True,
        },
        **dict.fromkeys(
            ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"),
            "auto",
        ),
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
    }
    settings = [
        "learning_rate=3e-5",
        "per_device_train_batch_size=2",
        "fp16=true",
        "max_grad_norm=0.3",
        "warmup_steps=0",
    ]
    run = load_run_config(None, settings)
    resolved = resolve(config, run, 2, GPU).with_total_steps(100, run)
    assert (resolved.precision, resolved.stage, resolved.offload) == ("fp16", 2, True)
    assert (resolved.micro_batch_size, resolved.train_batch_size, resolved.gradient_clipping) == (2, 4, 0.3)
    assert resolved.scheduler is not None
    assert resolved.scheduler["params"] == {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 1}
    assert "auto" not in json.dumps(resolved.config)
