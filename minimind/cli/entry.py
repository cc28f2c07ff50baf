"""One command from its words to its exit code: every error is one line, unless ``--debug`` asks for the traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from minimind.base.display import complain, show_tracebacks, speak_utf8
from minimind.base.errors import UserError
from minimind.cli.root import app

# Their commands register themselves, in the order of --help.
from minimind.cli import runs, data, models  # noqa: F401  # isort: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit; the console script calls it without arguments."""
    speak_utf8()
    show_tracebacks()
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run([word for word in words if word != "--debug"], debug="--debug" in words))


def run(arguments: list[str], debug: bool = False) -> int:
    """Run one command; its exit code."""
    try:
        return int(app(arguments, prog_name="minimind", standalone_mode=False) or 0)
    except _USAGE_ERROR as error:
        # A bare `minimind` is answered with the help, not with an error.
        return _wrong(f"{error.format_message()} ({_help_of(error)})" if arguments else "")
    except UserError as error:
        if debug:
            raise
        return _wrong(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # `minimind check ... | head`
        sys.stderr.close()
        return 1
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename and error.strerror:
            return _wrong(f"{error.filename}: {error.strerror}")
        return _wrong(f"{type(error).__name__}: {error} (a bug, or a machine in trouble: --debug shows where)", 1)


# typer's own copy of click since 0.27, click itself before: the base of all errors in the command line.
_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]


def _help_of(error: Any) -> str:
    """The help of the command that was typed."""
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'minimind'} --help"


def _wrong(message: str, code: int = 2) -> int:
    if message:
        complain("error: " + " ".join(message.split()))
    return code
