"""``RunConfig``: what the YAML owns (model, data, schedule, run), typed and strict.

What the DeepSpeed JSON owns (batch sizes, learning rate, clipping ...) is ``None`` here unless the user sets it; then
it fills ``"auto"`` in the JSON and must equal an explicit value there.
Weakness: paths are relative to the working directory, as in Hugging Face, not to the YAML file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from minimind.base.defaults import MAX_BAD_RATIO, OUTPUT_DIRECTORY, ROW_LENGTH, AttentionBackend, Reasoning
from minimind.base.findings import Finding
from minimind.config.health import HealthConfig
from minimind.config.heartbeat import HeartbeatConfig
from minimind.config.model import PRESETS, ModelConfig
from minimind.config.places import Places
from minimind.config.recovery import RecoveryConfig
from minimind.config.run.values import (
    TrainFile,
    WeightedFile,
    as_cadence,
    as_field_map,
    as_json,
    as_model,
    as_optimizer,
    as_paths,
    as_schedule,
    as_section,
    as_switch,
    as_trackers,
    as_train_files,
)
from minimind.config.samples import SamplesConfig, as_samples
from minimind.config.watchdog import WatchdogConfig

Strategy = Literal["no", "steps", "epoch"]
PositiveInt = Annotated[int, Field(gt=0)]
# Every so many steps, or, below 1, a share of the whole run as Hugging Face has it
Cadence = Annotated[int | float, BeforeValidator(as_cadence)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class RunConfig(BaseModel):
    """One run. Names are Hugging Face's where it has one; ``None`` means "not set by the user"."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # Model and data; ``model_name_or_path``: weights that SFT starts from
    model_name_or_path: Path | None = None
    model: Annotated[ModelConfig, BeforeValidator(as_model)] = PRESETS["26m"]
    tokenizer: Path | None = None
    train_file: Annotated[list[TrainFile], BeforeValidator(as_train_files)] = []
    eval_file: Annotated[list[Path], BeforeValidator(as_paths)] = []
    max_seq_length: Annotated[int, Field(gt=1)] = ROW_LENGTH
    skip_bad: bool = False
    max_bad_ratio: Annotated[float, Field(ge=0, le=1)] = MAX_BAD_RATIO
    format: str | None = None
    text_field: str | None = None
    map: Annotated[str | None, BeforeValidator(as_field_map)] = None
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
    optim: Annotated[str | None, BeforeValidator(as_optimizer)] = None
    initial_scale_power: Annotated[int, Field(ge=0)] | None = None
    loss_scale_window: PositiveInt | None = None
    hysteresis: PositiveInt | None = None
    # The JSON itself, or where it is
    deepspeed: Annotated[Path | dict[str, Any] | None, BeforeValidator(as_json)] = None

    # Schedule
    lr_scheduler_type: Annotated[str, BeforeValidator(as_schedule)] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    warmup_ratio: Fraction = 0.02
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    max_steps: PositiveInt | None = None
    num_train_epochs: Annotated[float, Field(gt=0)] = 1.0

    # Run
    seed: Annotated[int, Field(ge=0)] = 42
    output_dir: Path = OUTPUT_DIRECTORY
    logging_steps: Cadence = 10
    eval_strategy: Strategy | None = None
    eval_steps: Cadence | None = None
    save_strategy: Strategy | None = None
    save_steps: Cadence | None = None
    save_total_limit: PositiveInt = 3
    early_stopping_patience: PositiveInt | None = None
    report_to: Annotated[list[str], BeforeValidator(as_trackers)] = []
    run_name: str | None = None
    wandb_project: str = "minimind"
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"], BeforeValidator(lambda value: "disabled" if value is False else value)
    ] = "online"
    swanlab_project: str = "minimind"
    swanlab_mode: Annotated[
        Literal["online", "offline", "local", "disabled"],
        BeforeValidator(lambda value: "disabled" if value is False else value),
    ] = "online"
    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(as_switch)] = "auto"
    attention_backend: AttentionBackend = "auto"
    gradient_checkpointing: bool = False
    emulate_fp16: bool = False
    health: HealthConfig = HealthConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    watchdog: Annotated[WatchdogConfig, BeforeValidator(as_section)] = WatchdogConfig()
    heartbeat: Annotated[HeartbeatConfig, BeforeValidator(as_section)] = HeartbeatConfig()
    samples: Annotated[SamplesConfig, BeforeValidator(as_samples)] = SamplesConfig()

    _places: Places = PrivateAttr(default_factory=Places)

    @model_validator(mode="after")
    def _end_as_named(self) -> RunConfig:
        """Hugging Face's cosine and linear, and a cooldown, end at 0 if asked for by name; the default at its share."""
        named = "lr_scheduler_type" in self.explicit and "min_lr_ratio" not in self.explicit
        if named and self.lr_scheduler_type in ("cosine", "cooldown", "linear"):
            self.__dict__["min_lr_ratio"] = 0.0  # a frozen model, and nobody has set it
        return self

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
        if self.eval_strategy == "no" and self.samples.prompts:
            problems.append("samples are written at evaluations, and eval_strategy is no: keep one")
        if self.max_seq_length > self.model.max_position_embeddings:
            problems.append(
                f"max_seq_length {self.max_seq_length} exceeds the model's max_position_embeddings "
                f"{self.model.max_position_embeddings}"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def remember(self, places: Mapping[tuple[str, ...], str], remarks: list[Finding]) -> None:
        """Keep where each setting was given, and what of the user's YAML has no effect."""
        self._places.update(places)
        self._places.remarks = remarks

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
        """Warmup in optimizer steps: ``warmup_steps`` if set, else the ratio, rounded up as Hugging Face does."""
        return self.warmup_steps if self.warmup_steps is not None else -int(-total_steps * self.warmup_ratio // 1)

    def dump_yaml(self) -> str:
        """YAML that loads back into an equal RunConfig; unset values are left out."""
        values = self.model_dump(mode="json", exclude_none=True)
        if self.warmup_steps is not None:
            del values["warmup_ratio"]  # both at once are refused
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
