"""What the commands register with: `minimind` itself, its own options, and how a command answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NoReturn

import typer

from minimind.base.display import say

app = typer.Typer(
    name="minimind",
    help="Train MiniMind from raw text to chat with DeepSpeed. Training itself: deepspeed launch/pretrain.py --help",
    no_args_is_help=True,
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},  # as the launch scripts have it
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from minimind import __version__

        say(f"minimind {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Only declares them: `main` looks for --debug, wherever it stands."""


def end(code: int) -> NoReturn:
    """End the command with this exit code."""
    raise typer.Exit(code)


def show_json(value: object) -> None:
    """Print a value as indented JSON."""
    import json

    say(json.dumps(value, ensure_ascii=False, indent=2))


def show_table(values: Mapping[str, object]) -> None:
    """Print one line a value, behind its name."""
    for name, value in values.items():
        say(f"{name:<16}{value}")
