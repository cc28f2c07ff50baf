"""One place for each default: the shipped JSONs, the command line and the functions agree with base/defaults.py."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from minimind import cli
from minimind.base import defaults
from minimind.base.hardware import Hardware
from minimind.config.deepspeed import resolve
from minimind.config.run import load_run_config

ROOT = Path(__file__).parents[2]
JSONS = sorted((ROOT / "ds_configs").glob("*.json"))
ANY = Hardware("cuda", fp16=True, bf16=True)


def kind_of(path: Path) -> str:
    return "sft" if path.name.startswith("sft_") else "pretrain"


@pytest.mark.parametrize("path", JSONS, ids=lambda path: path.stem)
def test_a_shipped_json_says_what_auto_would_mean(path: Path) -> None:
    """Each number in it is the default; so the same JSON with "auto" everywhere resolves to the same optimizer."""
    values = json.loads(path.read_text())
    said = resolve(path, load_run_config(None), 1, ANY, kind=kind_of(path))
    own = {"muon_lr", "momentum"} | ({"betas"} if said.optimizer.type == "Muon" else set())
    own |= {"weight_decay"} if said.optimizer.type == "Lion" else set()  # proven values of these two alone
    params = values["optimizer"]["params"]
    values["optimizer"]["params"] = {key: params[key] if key in own else "auto" for key in params}
    values["gradient_clipping"] = "auto"
    auto = resolve(values, load_run_config(None), 1, ANY, kind=kind_of(path))
    assert auto.optimizer == said.optimizer
    assert (auto.gradient_clipping, auto.micro_batch_size) == (said.gradient_clipping, said.micro_batch_size)


def test_the_fixed_loss_scale_is_the_shipped_one() -> None:
    fixed = json.loads((ROOT / "ds_configs" / "fp16_fixed_scale.json").read_text())
    assert fixed["fp16"]["loss_scale"] == defaults.FIXED_LOSS_SCALE
    assert load_run_config(None).recovery.loss_scale == defaults.FIXED_LOSS_SCALE


def test_the_command_line_has_the_defaults_of_the_yaml() -> None:
    run = load_run_config(None)
    wanted = {
        "max_seq_length": run.max_seq_length,
        "max_bad_ratio": run.max_bad_ratio,
        "vocab_size": run.model.vocab_size,
    }
    commands: Any = typer.main.get_command(cli.app)
    seen = set()
    for command in commands.commands.values():
        for option in command.params:
            if option.name in wanted:
                seen.add(option.name)
                assert option.default == wanted[option.name], (command.name, option.name)
    assert seen == set(wanted)


SHARED = {"max_seq_length", "max_bad_ratio", "vocab_size", "temperature", "top_p", "IGNORE", "MODEL_STATES"}


def test_no_module_spells_a_shared_default_again() -> None:
    found = []
    for path in sorted((ROOT / "minimind").rglob("*.py")):
        if path.name == "defaults.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found += [
                (path.name, name, value) for name, value in _spelled(node) if name in SHARED and value is not None
            ]
    assert found == []


def _spelled(node: ast.AST) -> list[tuple[str, object]]:
    """(name, literal) of parameter defaults, annotated fields and assignments."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args.posonlyargs + node.args.args
        defaulted = arguments[len(arguments) - len(node.args.defaults) :]
        pairs = list(zip(defaulted, node.args.defaults, strict=True))
        pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
        return [(argument.arg, _literal(default)) for argument, default in pairs]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return [(node.target.id, _literal(node.value))]
    if isinstance(node, ast.Assign):
        return [(target.id, _literal(node.value)) for target in node.targets if isinstance(target, ast.Name)]
    return []


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
