"""``RunConfig``: what the YAML owns (model, data, schedule, run), typed and strict.

Sources, later ones win: the defaults below, the YAML file, ``--set key=value``, command-line options. Every
problem of every source is reported in one error, each with its place. What the DeepSpeed JSON owns (batch
sizes, learning rate, clipping ...) is ``None`` here unless the user sets it; then it fills ``"auto"`` in the
JSON and must equal an explicit value there.
Weakness: paths are relative to the working directory, as in Hugging Face, not to the YAML file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from minimind.base.defaults import (
    MAX_BAD_RATIO,
    MAX_WEIGHT,
    OUTPUT_DIRECTORY,
    ROW_LENGTH,
    AttentionBackend,
    Reasoning,
)
from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.base.problems import nearest, raise_problems
from minimind.base.strict.json_text import read_text_named
from minimind.base.strict.yaml_text import parse_yaml
from minimind.config.health import HealthConfig
from minimind.config.model import PRESETS, ModelConfig
from minimind.config.places import Places
from minimind.config.recovery import RecoveryConfig
from minimind.config.schedules import SHAPES
from minimind.config.watchdog import WatchdogConfig
from minimind.config.yaml_names.hugging_face import MEANINGS
from minimind.config.yaml_names.json_homes import json_home
from minimind.config.yaml_names.optimizers import optimizer_type
from minimind.config.yaml_names.translate import Words, translate

Strategy = Literal["no", "steps", "epoch"]
PositiveInt = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

# Hugging Face spells some of our schedules differently; a YAML written for it should run.
_SCHEDULE_ALIASES = {
    "warmup_stable_decay": "wsd",
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
    "cosine_warmup_with_min_lr": "cosine",
}


# What ``report_to`` may name: "module:class" of a training.record.trackers.Tracker, looked up when a run has it
TRACKERS = {"wandb": "minimind.training.record.trackers:WandbLog"}


def _one_of(value: Any, names: Collection[str]) -> Any:
    """``value`` if it is one of ``names``; ValueError in pydantic's words for a Literal."""
    if value in names:
        return value
    *first, last = map(repr, names)
    raise ValueError(f"expected {', '.join(first)} or {last}, got {value!r}")


def _schedule(value: Any) -> Any:
    return _one_of(_SCHEDULE_ALIASES.get(value, value) if isinstance(value, str) else value, SHAPES)


def _tracker(value: Any) -> Any:
    return _one_of("none" if value in (None, [], False) else value, ("none", *TRACKERS))


def _model(value: Any) -> Any:
    """A preset name, or a mapping with an optional ``preset`` and overrides -> ModelConfig."""
    if isinstance(value, str):
        value = {"preset": value}
    if not isinstance(value, Mapping):
        return value
    fields = dict(value)
    unknown = [
        f'unknown key "{key}"{nearest(str(key), ModelConfig.model_fields)}'
        for key in fields
        if key not in ModelConfig.model_fields and key != "preset"
    ]
    if unknown:
        raise ValueError("; ".join(unknown))
    preset = fields.pop("preset", None)
    try:
        return ModelConfig(**fields) if preset is None else ModelConfig.preset(str(preset), **fields)
    except UserError as error:  # pydantic collects ValueErrors only
        raise ValueError(str(error)) from None
    except ValidationError as error:
        raise ValueError("; ".join(_one_error(item, ModelConfig) for item in error.errors())) from None


def _switch(value: Any) -> Any:
    """YAML 1.1 reads bare ``on`` and ``off`` as booleans."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


def _optimizer(value: Any) -> Any:
    """Hugging Face's ``optim`` -> the optimizer's type; the JSON's own types stay."""
    return optimizer_type(value) if isinstance(value, str) else value


def _enabled(value: Any) -> Any:
    """``watchdog: off`` for ``watchdog: {enabled: false}``."""
    return {"enabled": value} if isinstance(value, bool) else value


def _paths(value: Any) -> Any:
    return [value] if isinstance(value, (str, Path)) else value


class WeightedFile(BaseModel):
    """A training source that is read ``weight`` times an epoch; 0.5: half of it, the other half in the next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT)] = 1.0


def _train_file(value: Any) -> Any:
    """A path, or a mapping with ``path`` and ``weight`` -> Path or WeightedFile."""
    if isinstance(value, str):
        return Path(value)
    if not isinstance(value, Mapping):
        if isinstance(value, (Path, WeightedFile)):
            return value
        raise ValueError(f"expected a path or {{path: ..., weight: ...}}, got {value!r}")
    try:
        return WeightedFile(**value)
    except ValidationError as error:  # pydantic would report it once for each type that is possible here
        raise ValueError("; ".join(_one_error(item, WeightedFile) for item in error.errors())) from None


def _train_files(value: Any) -> Any:
    return [value] if isinstance(value, (str, Path, Mapping, WeightedFile)) else value


def _field_map(value: Any) -> Any:
    """``{prompt: question}`` is easier to write in YAML than ``prompt=question``; both are the same."""
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, Mapping) else value


TrainFile = Annotated[Path | WeightedFile, BeforeValidator(_train_file)]


class RunConfig(BaseModel):
    """One run. Names are Hugging Face's where it has one; ``None`` means "not set by the user"."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # Model and data; ``model_name_or_path``: weights that SFT starts from
    model_name_or_path: Path | None = None
    model: Annotated[ModelConfig, BeforeValidator(_model)] = PRESETS["26m"]
    tokenizer: Path | None = None
    train_file: Annotated[list[TrainFile], BeforeValidator(_train_files)] = []
    eval_file: Annotated[list[Path], BeforeValidator(_paths)] = []
    max_seq_length: Annotated[int, Field(gt=1)] = ROW_LENGTH
    skip_bad: bool = False
    max_bad_ratio: Annotated[float, Field(ge=0, le=1)] = MAX_BAD_RATIO
    format: str | None = None
    text_field: str | None = None
    map: Annotated[str | None, BeforeValidator(_field_map)] = None
    encoding: str | None = None
    allow_special: bool = False
    reasoning: Reasoning = "train"
    num_workers: PositiveInt | None = None

    # Owned by the DeepSpeed JSON: these fill its "auto" values
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    weight_decay: NonNegative | None = None
    adam_beta1: Fraction | None = None
    adam_beta2: Fraction | None = None
    adam_epsilon: Annotated[float, Field(gt=0)] | None = None
    max_grad_norm: NonNegative | None = None
    per_device_train_batch_size: PositiveInt | None = None
    gradient_accumulation_steps: PositiveInt | None = None
    fp16: bool | None = None
    bf16: bool | None = None
    optim: Annotated[str | None, BeforeValidator(_optimizer)] = None
    initial_scale_power: Annotated[int, Field(ge=0)] | None = None
    loss_scale_window: PositiveInt | None = None
    hysteresis: PositiveInt | None = None
    deepspeed: Path | dict[str, Any] | None = None  # the JSON itself, or where it is

    # Schedule
    lr_scheduler_type: Annotated[str, BeforeValidator(_schedule)] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    warmup_ratio: Fraction = 0.02
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    max_steps: PositiveInt | None = None
    num_train_epochs: Annotated[float, Field(gt=0)] = 1.0

    # Run
    seed: Annotated[int, Field(ge=0)] = 42
    output_dir: Path = OUTPUT_DIRECTORY
    logging_steps: PositiveInt = 10
    eval_strategy: Strategy | None = None
    eval_steps: PositiveInt | None = None
    save_strategy: Strategy | None = None
    save_steps: PositiveInt | None = None
    save_total_limit: PositiveInt = 3
    early_stopping_patience: PositiveInt | None = None
    report_to: Annotated[str, BeforeValidator(_tracker)] = "none"
    run_name: str | None = None
    wandb_project: str = "minimind"
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"], BeforeValidator(lambda value: "disabled" if value is False else value)
    ] = "online"
    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = "auto"
    attention_backend: AttentionBackend = "auto"
    gradient_checkpointing: bool = False
    emulate_fp16: bool = False
    health: HealthConfig = HealthConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    watchdog: Annotated[WatchdogConfig, BeforeValidator(_enabled)] = WatchdogConfig()

    _places: Places = PrivateAttr(default_factory=Places)

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        """Contradictions between keys; pydantic reports them together with the others only if those are clean."""
        problems = []
        if {"warmup_steps", "warmup_ratio"} <= self.explicit:
            problems.append("warmup_steps and warmup_ratio are both set: keep one")
        if self.fp16 and self.bf16:
            problems.append("fp16 and bf16 are both true: keep one")
        if self.eval_strategy == "no" and self.early_stopping_patience is not None:
            problems.append("early_stopping_patience needs evaluations, and eval_strategy is no: keep one")
        if self.max_seq_length > self.model.max_position_embeddings:
            problems.append(
                f"max_seq_length {self.max_seq_length} exceeds the model's max_position_embeddings "
                f"{self.model.max_position_embeddings}"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def explicit(self) -> frozenset[str]:
        """Names of the fields that the user gave a value."""
        return frozenset(name for name in self.model_fields_set if getattr(self, name) is not None)

    def place(self, name: str) -> str:
        """Where the value of ``name`` was given: ``run.yaml:3``, ``--set learning_rate=3e-4``, ``--max-steps``."""
        return self._places.place(name)

    def origin(self, name: str) -> str:
        """The same as the end of a sentence: "in run.yaml:3", "by --max-steps"."""
        return self._places.origin(name)

    def commanded(self, name: str) -> bool:
        """Whether the value of ``name`` was given on the command line."""
        return self._places.commanded(name)

    @property
    def remarks(self) -> list[Finding]:
        """What of the user's YAML has no effect."""
        return self._places.remarks

    def json_lines(self) -> tuple[str, dict[tuple[str, ...], list[int]]]:
        """Of a JSON that is a section of the YAML: the file, and the line of each of its keys."""
        below = {path[1:]: place for path, place in self._places.items() if path[:1] == ("deepspeed",)}
        split = {path: place.rpartition(":") for path, place in below.items()}
        lines = {path: [int(line)] for path, (_, _, line) in split.items() if path and line.isdigit()}
        return self.place("deepspeed").rpartition(":")[0] or "the YAML", lines

    @property
    def train_paths(self) -> list[Path]:
        """The training sources without their weights."""
        return [source.path if isinstance(source, WeightedFile) else source for source in self.train_file]

    @property
    def train_weights(self) -> list[float] | None:
        """A weight for each training source; None if none was given: then all files are one source."""
        if not any(isinstance(source, WeightedFile) for source in self.train_file):
            return None
        return [source.weight if isinstance(source, WeightedFile) else 1.0 for source in self.train_file]

    def warmup(self, total_steps: int) -> int:
        """Warmup in optimizer steps: ``warmup_steps`` if set, else the rounded ratio (Hugging Face's rule:
        ceil).
        """
        return self.warmup_steps if self.warmup_steps is not None else -int(-total_steps * self.warmup_ratio // 1)

    def dump_yaml(self) -> str:
        """YAML that loads back into an equal RunConfig; unset values are left out."""
        values = self.model_dump(mode="json", exclude_none=True)
        if self.warmup_steps is not None:
            del values["warmup_ratio"]  # both at once are refused
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _read_yaml(path: Path, problems: list[str]) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The mapping in ``path`` and the ``file:line`` of each key; syntax and duplicate-key errors go to
    ``problems``.
    """
    try:
        values, root = parse_yaml(read_text_named(path))
    except OSError as error:
        raise UserError(f"{path}: cannot read the config: {error.strerror}") from None
    except ValueError as error:
        reason = str(error)
        raise UserError(f"{path}{reason if reason.startswith(':') else f': {reason}'}") from None
    places: dict[tuple[str, ...], str] = {}
    _collect_places(root, (), path, places, problems)
    if values is not None and not isinstance(values, dict):
        raise UserError(f"{path}:1: expected a mapping (key: value lines), got a {type(values).__name__}")
    return values or {}, places


def _collect_places(
    node: yaml.Node | None, prefix: tuple[str, ...], path: Path, places: dict[tuple[str, ...], str], problems: list[str]
) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = (*prefix, str(key.value))
        place = f"{path}:{key.start_mark.line + 1}"
        if name in places:
            problems.append(f'{place}: duplicate key "{".".join(name)}" (first at {places[name]}): keep one')
        places.setdefault(name, place)
        _collect_places(value, name, path, places, problems)


def _merge(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; ``model.hidden_size`` on top of ``model: 26m`` becomes a preset with an override."""
    head, _, tail = key.partition(".")
    if not tail:
        values[head] = value
        return
    below = values.get(head)
    below = {"preset": below} if isinstance(below, str) else dict(below or {}) if isinstance(below, dict) else {}
    _merge(below, tail, value)
    values[head] = below


def _apply_overrides(
    values: dict[str, Any], places: dict[tuple[str, ...], str], overrides: Sequence[str], problems: list[str]
) -> None:
    for text in overrides:
        key, equals, raw = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            problems.append(f'--set {text}: expected key=value, for example "--set learning_rate=3e-4"')
            continue
        try:
            _merge(values, key, parse_yaml(raw)[0])
        except ValueError as error:
            reason = str(error).partition(": ")[2]
            problems.append(f"--set {text[:200]}: {reason}; quote the value if it is a text")
        places[tuple(key.split("."))] = f"--set {text}"
        places[(key.split(".")[0],)] = f"--set {text}"


def _one_error(error: Any, owner: type[BaseModel]) -> str:
    """pydantic's error about a value for ``owner`` as ``name: reason (got value)``."""
    if error["type"] == "extra_forbidden":
        *outer, key = error["loc"]
        where = f"{'.'.join(str(part) for part in outer)}: " if outer else ""
        return f'{where}unknown key "{key}"{nearest(str(key), _section(owner, outer).model_fields)}'
    name = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    wanted = "" if error["type"] == "value_error" else f"expected {message}"
    got = "" if error["type"] in ("value_error", "missing") else f", got {error['input']!r}"
    return f"{name}: {wanted or message}{got}" if name else wanted or message


def _section(owner: type[BaseModel], names: Sequence[Any]) -> type[BaseModel]:
    """The class of the section that these keys lead to."""
    for name in names:
        section = owner.model_fields[name].annotation
        assert isinstance(section, type)  # a key that isn't known is not inside a list or a union
        assert issubclass(section, BaseModel)
        owner = section
    return owner


def _place(loc: tuple[Any, ...], places: Mapping[tuple[str, ...], str], default: str) -> str:
    """The most exact known place of an error location."""
    names = tuple(str(part) for part in loc)
    return next((places[names[:size]] for size in range(len(names), 0, -1) if names[:size] in places), default)


def _translated(
    values: dict[str, Any], places: dict[tuple[str, ...], str], problems: list[str], overriding: bool = False
) -> list[Finding]:
    """Put other people's names for ours, in place; what of them has no effect."""
    words = Words(values, places, problems, overriding=overriding)
    translate(words)
    return words.findings


def _hint(name: str) -> str:
    """Where an unknown key belongs, or the nearest name."""
    return json_home(name) or nearest(name, [*RunConfig.model_fields, *MEANINGS])


def load_run_config(
    yaml_path: str | Path | None, set_overrides: Sequence[str] = (), cli: Mapping[str, object] | None = None
) -> RunConfig:
    """Read, merge and check a run's configuration.

    ``cli`` holds command-line options by field name; ``None`` values are options that were not given. Raises
    one UserError that lists every problem with its place: ``file:line``, the ``--set`` text or the option.
    """
    problems: list[str] = []
    values, places = _read_yaml(Path(yaml_path), problems) if yaml_path is not None else ({}, {})
    findings = _translated(values, places, problems)
    _apply_overrides(values, places, set_overrides, problems)
    for name, value in (cli or {}).items():
        if value is not None:
            _merge(values, name, value)
            places[(name,)] = f"--{name.replace('_', '-')}"
    findings += _translated(values, places, problems, overriding=True)
    default = str(yaml_path) if yaml_path is not None else "the command line"
    for name in [name for name in values if name not in RunConfig.model_fields]:
        place = _place((name,), places, default)
        problems.append(f'{place}: unknown key "{name}"{_hint(str(name))}')
        del values[name]
    config: RunConfig | None = None
    try:
        config = RunConfig(**values)
    except ValidationError as error:
        problems += [
            f"{_place(item['loc'], places, default)}: {_one_error(item, RunConfig)}" for item in error.errors()
        ]
    raise_problems(problems, "the run configuration")
    assert config is not None  # a problem was raised otherwise
    config._places.update(places)
    config._places.remarks = findings
    return config
