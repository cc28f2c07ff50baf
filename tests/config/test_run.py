"""RunConfig: sources, order, strictness, places; ModelConfig: presets and exact sizes; choosing a JSON by hardware."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware, choose_config, detect
from minimind.config.model import PRESETS, ModelConfig, default_intermediate_size
from minimind.config.run import RunConfig, load_run_config, steps_of

ROOT = Path(__file__).parents[2]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("preset", "count"), [("26m", 25_829_888), ("104m", 104_030_976), ("1.1b", 1_100_048_384)])
def test_presets_have_exactly_the_advertised_parameters(preset: str, count: int) -> None:
    assert PRESETS[preset].num_parameters() == count


def test_parameter_count_equals_the_built_model() -> None:
    from minimind.model.transformer import Transformer

    for tied in (True, False):
        config = ModelConfig.preset("tiny", vocab_size=96, num_hidden_layers=2, tie_word_embeddings=tied)
        assert sum(p.numel() for p in Transformer(config).parameters()) == config.num_parameters()


@pytest.mark.parametrize(("hidden", "width"), [(512, 1408), (768, 2048), (640, 1728), (64, 192)])
def test_feed_forward_width_rule(hidden: int, width: int) -> None:
    assert default_intermediate_size(hidden) == width


def test_sizes_follow_an_overridden_hidden_size() -> None:
    config = ModelConfig.preset("26m", hidden_size=256)
    assert (config.head_dim, config.intermediate_size) == (32, 704)
    assert ModelConfig.preset("26m", hidden_size=256, head_dim=64).head_dim == 64


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r'"25m".*did you mean "26m"'):
        ModelConfig.preset("25m")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, "multiple"),
        ({"head_dim": 7}, "even"),
        ({"hidden_size": 0}, "greater than 0"),
    ],
)
def test_impossible_shapes_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**fields)


def test_later_sources_win(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", "model: tiny\nmax_steps: 10\nseed: 1\nlearning_rate: 1e-3\n")
    config = load_run_config(path, ["seed=2", "max_steps=20"], {"max_steps": 30, "output_dir": None})
    assert (config.model, config.seed, config.max_steps) == (PRESETS["tiny"], 2, 30)
    assert config.learning_rate == 1e-3  # YAML 1.1 would read a string
    assert config.explicit == {"model", "max_steps", "seed", "learning_rate"}


def test_defaults_need_no_file() -> None:
    config = load_run_config(None)
    assert config == RunConfig()
    assert config.explicit == frozenset()
    assert config.learning_rate is None
    assert config.model == PRESETS["26m"]


def test_model_mapping_and_dotted_overrides(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", "model:\n  preset: 26m\n  num_hidden_layers: 2\n")
    assert load_run_config(path).model == ModelConfig.preset("26m", num_hidden_layers=2)
    config = load_run_config(None, ["model=tiny", "model.num_hidden_layers=3"])
    assert config.model == ModelConfig.preset("tiny", num_hidden_layers=3)


def test_all_problems_at_once_with_their_places(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", "model: 25m\nwarmup_step: 3\nreport_to: foo\nseed: 1\nseed: 2\n")
    with pytest.raises(UserError) as caught:
        load_run_config(path, ["max_steps=abc", "nonsense"], {"max_seq_length": -3})
    message = str(caught.value)
    assert message.startswith("7 problems in the run configuration:")
    for part in (
        f'{path}:1: model: unknown model preset "25m": did you mean "26m"?',
        f'{path}:2: unknown key "warmup_step" (did you mean "warmup_steps"?)',
        f"{path}:3: report_to: expected 'none', 'wandb', 'tensorboard' or 'swanlab', got 'foo'",
        f'{path}:5: duplicate key "seed" (first at {path}:4)',
        "--set max_steps=abc: max_steps:",
        "--set nonsense: expected key=value",
        "--max-seq-length: max_seq_length: expected greater than 1, got -3",
    ):
        assert part in message


def test_one_problem_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", "\nmodel:\n  preset: tiny\n  hiden_size: 3\n")
    with pytest.raises(UserError) as caught:
        load_run_config(path)
    assert "\n" not in str(caught.value)
    assert f'{path}:2: model: unknown key "hiden_size" (did you mean "hidden_size"?)' in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "health:\n  heal_steps: 9\n  spike_zz: 3\n",
            'run.yaml:3: health: unknown key "spike_zz" (did you mean "spike_z"?)',
        ),
        ("seed: 1\nhealth: {qqq: 3}\n", 'run.yaml:2: health: unknown key "qqq"'),
        (
            "train_file:\n  - {path: a, wieght: 2}\n",
            'run.yaml:1: train_file.0: unknown key "wieght" (did you mean "weight"?)',
        ),
        ("model: {hiden_size: 3}\n", 'run.yaml:1: model: unknown key "hiden_size" (did you mean "hidden_size"?)'),
    ],
)
def test_an_unknown_key_below_a_section_has_its_line_and_the_nearest_name(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_run_config(write(tmp_path / "run.yaml", text))
    assert str(caught.value) == f"{tmp_path}/{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\nb: 2\n", r"run.yaml:3:1: not valid YAML"),
        ("- 1\n- 2\n", "run.yaml:1: expected a mapping"),
        ("a: b: c\n", r"run.yaml:1:5: not valid YAML"),
    ],
)
def test_broken_yaml_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_run_config(write(tmp_path / "run.yaml", text))


def test_missing_and_undecodable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none.yaml: cannot read the config: No such file"):
        load_run_config(tmp_path / "none.yaml")
    path = tmp_path / "run.yaml"
    path.write_bytes(b"seed: 1 # \xff\n")
    with pytest.raises(UserError, match="not UTF-8 at byte 10"):
        load_run_config(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["warmup_steps=3", "warmup_ratio=0.1"], "warmup_steps and warmup_ratio"),
        (["fp16=true", "bf16=true"], "fp16 and bf16"),
        (["max_seq_length=99999"], "exceeds the model's max_position_embeddings"),
    ],
)
def test_contradictions(settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_run_config(None, settings)


def test_yaml_spellings() -> None:
    config = load_run_config(
        None,
        ["compile=on", "report_to=null", "wandb_mode=off", "lr_scheduler_type=constant_with_warmup", "max_steps=1e3"],
    )
    assert (config.compile, config.report_to, config.wandb_mode) == ("on", [], "disabled")
    assert (config.lr_scheduler_type, config.max_steps) == ("constant", 1000)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model=tiny", "learning_rate=3e-4", "train_file=[a.jsonl, b.jsonl]", "compile=off", "tokenizer=t"],
        ["train_file=[{path: a.jsonl, weight: 0.5}, b.jsonl]", "format=qa", "encoding=gb18030"],
        ["map={prompt: question, answer: solution}", "text_field=body", "allow_special=true"],
        ["warmup_steps=5", "run_name=试验", "fp16=true"],
    ],
)
def test_dumped_yaml_loads_back_equal(tmp_path: Path, settings: list[str]) -> None:
    config = load_run_config(None, settings)
    assert load_run_config(write(tmp_path / "run.yaml", config.dump_yaml())) == config


@pytest.mark.parametrize(
    ("settings", "lowest"),
    [
        ([], 0.1),
        (["lr_scheduler_type=cosine"], 0.0),
        (["lr_scheduler_type=linear"], 0.0),
        (["lr_scheduler_type=cooldown"], 0.0),
        (["lr_scheduler_type=cosine", "min_lr_ratio=0.1"], 0.1),
        (["lr_scheduler_type=cosine_with_min_lr", "lr_scheduler_kwargs={min_lr_rate: 0.2}"], 0.2),
        (["lr_scheduler_type=wsd"], 0.1),
    ],
)
def test_a_schedule_of_hugging_faces_name_ends_where_theirs_does(settings: list[str], lowest: float) -> None:
    config = load_run_config(None, settings)
    assert config.min_lr_ratio == lowest
    assert (
        load_run_config(
            None,
            [
                f"{key}={value}"
                for key, value in yaml.safe_load(config.dump_yaml()).items()
                if key in ("lr_scheduler_type", "min_lr_ratio")
            ],
        ).min_lr_ratio
        == lowest
    )


@pytest.mark.parametrize("name", ["logging_steps", "eval_steps", "save_steps"])
@pytest.mark.parametrize(("given", "steps"), [("0.1", 11), ("0.001", 1), ("1", 1), ("1e2", 100), ("7.0", 7)])
def test_a_cadence_below_1_is_a_share_of_the_run_as_in_hugging_face(name: str, given: str, steps: int) -> None:
    cadence = getattr(load_run_config(None, [f"{name}={given}"]), name)
    assert steps_of(cadence, 101) == steps
    for wrong in ("0", "-1", "1.5", "often", "true", ".inf"):
        with pytest.raises(UserError, match="a share of the run between 0 and 1"):
            load_run_config(None, [f"{name}={wrong}"])


@pytest.mark.parametrize(("total", "ratio", "steps"), [(1000, 0.02, 20), (101, 0.02, 3), (100, 0.0, 0)])
def test_warmup_rounds_up_as_hugging_face_does(total: int, ratio: float, steps: int) -> None:
    assert RunConfig(warmup_ratio=ratio).warmup(total) == steps
    assert RunConfig(warmup_steps=7).warmup(total) == 7


def test_training_sources_may_have_weights(tmp_path: Path) -> None:
    text = "train_file:\n  - {path: a.jsonl, weight: 2}\n  - b.jsonl\n  - {path: c}\n"
    config = load_run_config(write(tmp_path / "run.yaml", text))
    assert config.train_paths == [Path("a.jsonl"), Path("b.jsonl"), Path("c")]
    assert config.train_weights == [2.0, 1.0, 1.0]
    assert load_run_config(None, ["train_file={path: a, weight: 0.5}"]).train_weights == [0.5]
    plain = load_run_config(None, [], {"train_file": [Path("a"), Path("b")]})
    assert plain.train_paths == [Path("a"), Path("b")]
    assert plain.train_weights is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train_file=[{path: a, weight: 0}]", r"train_file.0: weight: expected greater than 0, got 0"),
        ("train_file=[a, {weight: 1}]", r"train_file.1: path: expected Field required"),
        ("train_file=[3]", r"train_file.0: expected a path or \{path: ..., weight: ...\}, got 3"),
        ("train_file=3", r"train_file: expected a valid list, got 3"),
    ],
)
def test_a_wrong_source_is_one_problem(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_run_config(None, [setting])
    assert "problems" not in str(caught.value)


def test_the_field_map_reads_both_spellings() -> None:
    for spelling in ("{prompt: question, answer: solution}", "'prompt=question,answer=solution'"):
        assert load_run_config(None, [f"map={spelling}"]).map == "prompt=question,answer=solution"


def test_importing_the_configuration_is_light() -> None:
    code = (
        "import sys, minimind.config.run, minimind.config.deepspeed, minimind.base.hardware;"
        "print([m for m in ('torch', 'deepspeed', 'transformers', 'hjson') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        (Hardware("cuda", True, True), "bf16.json"),
        (Hardware("cuda", True, False), "fp16.json"),
        (Hardware("cpu", False, True), "bf16.json"),
        (Hardware("cpu", True, False), "fp16.json"),
        (Hardware("cpu", False, False), "fp32.json"),
    ],
)
def test_the_chosen_json_exists_and_has_a_reason(hardware: Hardware, name: str) -> None:
    path, reason = choose_config(hardware)
    assert path.name == name
    assert reason
    assert (ROOT / path).is_file()
    assert (ROOT / choose_config(hardware, prefix="sft_")[0]).is_file()


def test_detection_agrees_with_this_machine() -> None:
    import torch

    hardware = detect()
    assert hardware.device_type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert hardware.memory is not None
    assert hardware.describe()


@pytest.mark.parametrize("name", ["learning_rate", "gradient_accumulation_steps", "warmup_ratio", "seed", "max_steps"])
def test_a_switch_is_no_number(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"{name}: yes\n")
    with pytest.raises(UserError, match=f"run.yaml:1: {name}: expected a number, got true"):
        load_run_config(path)
    assert load_run_config(None, ["bf16=yes"]).bf16 is True


def test_a_json_is_a_path_or_sections_and_a_path_is_a_text(tmp_path: Path) -> None:
    assert load_run_config(None, ['deepspeed=""']).deepspeed is None
    with pytest.raises(UserError, match=r"deepspeed: expected a path, or the JSON's own sections, got \[1\]"):
        load_run_config(None, ["deepspeed=[1]"])
    with pytest.raises(UserError, match="output_dir: expected a path, got 3"):
        load_run_config(None, ["output_dir=3"])
