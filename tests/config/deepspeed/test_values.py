"""Values of every type at every place of the JSON: read as DeepSpeed's own models read them, or refused in a line."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import resolve, schema
from minimind.config.deepspeed.lint import AUTO, Draft, check_names_and_types
from minimind.config.deepspeed.source import JsonSource, read_source
from minimind.config.run import RunConfig

ANY = Hardware("cuda", fp16=True, bf16=True)
NAN, INF = float("nan"), float("inf")
VALUES: tuple[Any, ...] = (
    *(True, False, None, AUTO, 0, 1, 2, -1, 2**100, 1.0, 1.5, 2e8, NAN, INF),
    *("2", " 3 ", "1e8", "5e-5", "nan", "", "x"),
    *("true", "FALSE", "yes", "no", "on", "off", "t", "y", "none", "cpu", "CPU"),
    *([], [1], ["norm"], {}, {"a": 1}),
)
CORNERS = (True, AUTO, -1, 1.5, 2**100, "x", [1], {"a": 1})
# Read by other keys' names (DeepSpeed's deprecated ones have no attribute of their own)
OLD = {"cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory", "stage3_gather_fp16_weights_on_model_save"}


def models() -> list[tuple[str, Any, Any]]:
    """Path, our table and DeepSpeed's model of each section that is one."""
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import TensorBoardConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    zero = "zero_optimization"
    return [
        ("fp16", schema.FP16, DeepSpeedFP16Config),
        ("bf16", schema.BF16, DeepSpeedBF16Config),
        (zero, schema.ZERO, DeepSpeedZeroConfig),
        (f"{zero}.offload_optimizer", schema.OFFLOAD_OPTIMIZER, DeepSpeedZeroOffloadOptimizerConfig),
        (f"{zero}.offload_param", schema.OFFLOAD_PARAM, DeepSpeedZeroOffloadParamConfig),
        ("tensorboard", schema.MONITORS["tensorboard"], TensorBoardConfig),
        ("comms_logger", schema.TOP_LEVEL["comms_logger"], CommsLoggerConfig),
        ("compile", schema.COMPILE, CompileConfig),
    ]


REFUSED = object()


def ours(path: str, value: Any) -> Any:
    """What our reading makes of one value; "auto" and null are as if the key were not there."""
    config: dict[str, Any] = {}
    draft = Draft(JsonSource(config, "a.json"), config, kind="pretrain")
    draft.set(path, copy.deepcopy(value))
    check_names_and_types(draft)
    return REFUSED if draft.problems else draft.get(path, AUTO)


def theirs(model: Any, key: str, value: Any) -> Any:
    """What DeepSpeed's model makes of it, as JSON's types."""
    import pydantic

    name = next(name for name, field in model.model_fields.items() if key in (name, field.alias))
    try:
        found = getattr(model(**({key: value} if key else {})), name)
    except (pydantic.ValidationError, AssertionError, ValueError):
        return REFUSED
    return getattr(found, "value", found)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """DeepSpeed warns of each deprecated key."""
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def test_a_value_that_both_take_is_the_same_and_deepspeeds_are_ours() -> None:
    """Where DeepSpeed takes a value, so do we, and both read the same; we also take what only has a plain meaning."""
    found = []
    for path, kinds, model in models():
        for key in (key for key, kind in kinds.items() if not isinstance(kind, Mapping) and key not in OLD):
            for value in VALUES:
                mine, truth = ours(f"{path}.{key}", value), theirs(model, key, value)
                if value is None or value == AUTO:
                    assert mine == AUTO, (path, key)
                elif truth is not REFUSED and mine != truth and str(mine) != str(truth):
                    found.append((f"{path}.{key}", value, mine, truth))
    assert not [case for case in found if case[1] != ""], found  # an empty path is "." to pydantic


def leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every path of the table, sections too."""
    for name, kind in section.items():
        yield f"{prefix}{name}"
        if isinstance(kind, Mapping):
            yield from leaves(kind, f"{prefix}{name}.")


def test_what_is_accepted_deepspeed_can_read() -> None:
    """No value passes here and ends in a traceback there; a refusal is one line."""
    from deepspeed.runtime.config import DeepSpeedConfig

    count = 0
    for path in leaves(schema.TOP_LEVEL):
        for value in CORNERS:
            config = {"fp16": {"enabled": True}, "zero_optimization": {"stage": 3}}
            draft = Draft(JsonSource(config, ""), config, kind="pretrain")
            if isinstance(draft.get(path.rpartition(".")[0], {}), dict):
                draft.set(path, copy.deepcopy(value))
            try:
                resolved = resolve(config, RunConfig(), 1, ANY)
            except UserError as error:
                lines = str(error).splitlines()
                assert len(lines) == 1 or all(line.startswith("  - ") for line in lines[1:]), lines
            else:
                DeepSpeedConfig(resolved.config)
                count += 1
    assert count > 300


NEEDED: dict[str, dict[str, Any]] = {
    "OneCycle": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3},
    "WarmupCosineLR": {"warmup_num_steps": 5},
    "WarmupDecayLR": {"warmup_num_steps": 5},
}


@pytest.mark.parametrize("kind", schema.SCHEDULERS)
def test_every_schedule_that_is_accepted_runs_and_no_rate_is_below_0(kind: str) -> None:
    import torch
    from deepspeed.runtime import lr_schedules

    count = 0
    for key in schema.SCHEDULERS[kind]:
        for value in (*CORNERS, 0, False, "1e-3", [1e-3], "Linear"):
            params = {**NEEDED.get(kind, {}), key: value}
            config = {"scheduler": {"type": kind, "params": params}, "gradient_clipping": 1.0}
            try:
                resolved = resolve(config, RunConfig(), 1, ANY).with_total_steps(50, RunConfig())
            except UserError:
                continue
            optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
            assert resolved.scheduler is not None
            schedule = getattr(lr_schedules, kind)(optimizer, **resolved.scheduler["params"])
            for _ in range(4):
                optimizer.step()
                schedule.step()
                assert optimizer.param_groups[0]["lr"] >= 0
            count += 1
    assert count > len(schema.SCHEDULERS[kind])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"fp16": {\n"enabled": NaN\n}}', "2: fp16.enabled: expected true or false, got 'NaN'"),
        ('{\n"gradient_clipping": Infinity\n}', "2: gradient_clipping: expected a number, got 'Infinity'"),
        ('{"gradient_clipping": NaN}', "not valid JSON"),  # to the parser a text to the end of the line
        ('{"fp16": {"enabled": true}, "fp16": {"enabled": false}}', '1: duplicate key "fp16"'),
        ('{\n"zero_optimization": {"stage": 1,\n"stage": 2}}', '3: duplicate key "zero_optimization.stage"'),
        ('{"a": ' * 200 + "1" + "}" * 200, "nested"),
        ('{"train_batch_size": 8}\n```', "2:1: not valid JSON"),
        ('{"train_batch_size": 8', "not valid JSON"),
        ("[]", "1:1: not valid JSON: the top level must be an object"),
        ('{"gradient_clipping": 1e400}', "not valid JSON"),
    ],
)
def test_what_is_no_json_or_no_number_is_one_line_with_its_place(tmp_path: Any, text: str, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        resolve(path, RunConfig(), 1, ANY)
    assert words in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_comments_and_commas_that_deepspeeds_parser_takes_are_taken(tmp_path: Any) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        '{\n  // rows\n  "train_micro_batch_size_per_gpu": 4, # of a rank\n  /* off */ fp16: {enabled: false,},\n}'
    )
    assert read_source(path).values == {"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": False}}
    assert resolve(path, RunConfig(), 1, ANY).micro_batch_size == 4


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({"fp16": True}, {"fp16": {"enabled": True}}),
        ({"bf16": "auto"}, {"bf16": {"enabled": AUTO}}),
        ({"fp16": False}, {"fp16": {"enabled": False}}),
        ({"zero_optimization": {"offload_param": "cpu"}}, {"zero_optimization": {"offload_param": {"device": "cpu"}}}),
        ({"zero_optimization": {"offload_optimizer": False}}, {"zero_optimization": {}}),
        ({"zero_optimization": "auto", "optimizer": "auto", "scheduler": None}, {}),
    ],
)
def test_a_value_without_its_section_is_taken_where_it_can_mean_one_thing(
    config: dict[str, Any], taken: dict[str, Any]
) -> None:
    draft = Draft(JsonSource(config, "a.json"), config, kind="pretrain")
    check_names_and_types(draft)
    assert (draft.values, draft.problems) == (taken, [])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"zero_optimization": {"offload_optimizer": True}}, "expected an object {...}, got True"),
        ({"optimizer": "AdamW"}, "expected an object {...}, got 'AdamW'"),
        ({"optimizer": {"params": {"lr": 1e-3}}}, "is missing beside the params (lr)"),
        ({"zero_optimization": {"stage3_max_live_parameters": -1}}, "a whole number of at least 0"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 1.5}}}, "a number from 0 to 1"),
        ({"data_types": {"keep_in_fp32_modules": [1]}}, "a list of strings"),
    ],
)
def test_what_can_mean_several_things_or_none_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(config, RunConfig(), 1, ANY)
    assert words in str(caught.value)
