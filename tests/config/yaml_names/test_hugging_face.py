"""The table of Hugging Face's names against the installed transformers, the document and what really happens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.config.deepspeed.optimizers import OPTIMIZERS
from minimind.config.deepspeed.schema import TOP_LEVEL
from minimind.config.run import RunConfig, load_run_config
from minimind.config.yaml_names import hugging_face, json_homes
from minimind.config.yaml_names.frameworks import FRAMEWORKS
from minimind.config.yaml_names.hugging_face import MEANINGS, OLDER, TABLE
from minimind.config.yaml_names.optimizers import _TYPES
from minimind.config.yaml_names.translate import _RENAMED

DOCUMENT = Path(__file__).parents[3] / "docs" / "hf_arguments.md"


def test_the_table_has_every_field_of_the_installed_version() -> None:
    transformers = pytest.importorskip("transformers")
    fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert fields - set(MEANINGS) == set()
    if transformers.__version__.startswith("5."):
        assert set(TABLE) - fields <= {"warmup_ratio"}


def test_the_document_is_the_table() -> None:
    head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition("## TrainingArguments")
    assert "## TrainingArguments" + rest == hugging_face.table_markdown(), "run the command at the document's head"
    assert "python -m minimind.config.yaml_names.hugging_face" in head


def test_used_names_are_fields_and_the_others_are_not() -> None:
    fields = set(RunConfig.model_fields)
    assert {name for name, meaning in MEANINGS.items() if meaning.status == "used"} <= fields
    assert not {name for name, meaning in MEANINGS.items() if meaning.status != "used"} & fields
    assert len(MEANINGS) == len(TABLE) + len(OLDER) + len(FRAMEWORKS)


@pytest.mark.parametrize("name", [name for name, meaning in MEANINGS.items() if meaning.status == "unused"])
def test_a_name_without_meaning_is_said_unless_it_asks_for_nothing(name: str) -> None:
    for off in (None, False, *MEANINGS[name].off):
        assert load_run_config(None, [f"{name}={yaml_of(off)}"]).remarks == []
    (finding,) = load_run_config(None, [f"{name}=77"]).remarks
    assert finding.code == "yaml-unused" and f"--set {name}=77" in finding.message
    assert MEANINGS[name].text in finding.message


def yaml_of(value: Any) -> str:
    return "" if value is None else f'"{value}"' if isinstance(value, str) else str(value).lower()


@pytest.mark.parametrize("name", [name for name, meaning in MEANINGS.items() if meaning.status == "refused"])
def test_what_would_train_differently_is_refused(name: str) -> None:
    value = "dpo" if name == "stage" else "77"  # a number is ZeRO's
    with pytest.raises(UserError, match=f"--set {name}={value}: {name}: .*{value}.* is not supported"):
        load_run_config(None, [f"{name}={value}"])


NOT_RENAMED = [n for n, meaning in FRAMEWORKS.items() if meaning.status == "other" and n not in _RENAMED]


@pytest.mark.parametrize("name", NOT_RENAMED)
def test_the_hint_at_a_name_that_is_another_here_says_ours(name: str) -> None:
    with pytest.raises(UserError) as caught:
        load_run_config(None, [f"{name}=3"])
    assert f'unknown key "{name}": here it is {MEANINGS[name].text}' in str(caught.value)


def test_every_optimizer_name_means_one_of_the_linters() -> None:
    assert set(_TYPES.values()) <= set(OPTIMIZERS)


def test_homes_in_the_json_are_the_schemas() -> None:
    for name, section in json_homes.HOMES.items():
        kinds: Any = TOP_LEVEL
        for part in section.split(".") if section and not section.endswith("params") else []:
            kinds = kinds[part]
        if section == "optimizer.params":
            assert any(name in own.params for own in OPTIMIZERS.values()), name
        elif section != "scheduler.params":
            assert name in kinds, (section, name)
