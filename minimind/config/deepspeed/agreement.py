"""One value in two places: what the JSON and the run's own configuration both say.

The rule for every pair. A value that only one of them states holds. Two different ones: the command line's wins over
the JSON and is said; the YAML's does not, it is a problem that names both places.
"""

from __future__ import annotations

from typing import Any

from minimind.config.deepspeed.lint import AUTO, Draft
from minimind.config.run import RunConfig


def settle(draft: Draft, run: RunConfig, path: str, name: str) -> Any:
    """The value that holds of the JSON's ``path`` and the run's ``name``; None: neither states one.

    After a winning command line the draft has its value; after a problem the JSON's is returned.
    """
    given, wanted = draft.get(path), getattr(run, name)
    if given is None or given == AUTO:
        return wanted
    if wanted is None or given == wanted or not isinstance(given, (int, float)):
        return given
    if not wins(draft, run, path, name=name, given=given, wanted=wanted):
        return given
    draft.set(path, wanted)
    return wanted


def wins(draft: Draft, run: RunConfig, path: str, name: str, given: Any, wanted: Any) -> bool:
    """Two different values: whether the run's wins, because it is the command line's; said either way."""
    if run.commanded(name):
        say_winner(draft, run, path, name=name, given=given, wanted=wanted)
        return True
    draft.problem(
        path,
        f"{_spelled(given)} in the JSON but {name} is {_spelled(wanted)} {run.origin(name)}: make them equal, "
        'or write "auto" in the JSON',
    )
    return False


def say_winner(draft: Draft, run: RunConfig, path: str, name: str, given: Any, wanted: Any) -> None:
    """The finding that the command line's ``name`` holds instead of the JSON's ``path``."""
    place = draft.source.place(tuple(path.split(".")))
    draft.find(
        "command-line-wins",
        f"{name} is {_spelled(wanted)} {run.origin(name)}; the JSON's {path} {_spelled(given)} ({place}) does not hold",
        f'to keep it, write it into the JSON, or "auto" there and {name} in the YAML',
    )


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
