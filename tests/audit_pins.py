"""Published holes in the versions of constraints.txt, asked of osv.dev: `make check` runs it.

Exit code 1 for a hole that is not in ``ACCEPTED``, with one line each. Where the database can't be reached that is said
in one line and nothing is wrong: a machine without a network checks the rest.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ADDRESS = "https://api.osv.dev/v1/querybatch"
SECONDS = 10  # to connect, and between two packets
LARGEST_ANSWER = 8 << 20
ACCEPTED: dict[str, str] = {}  # id -> why it does not concern us
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def pins(text: str) -> list[tuple[str, str]]:
    """(package, version) of each line ``package==version``, whatever stands behind it."""
    return re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^\s;#]+)", text)


def ask(queries: list[dict[str, Any]]) -> dict[str, Any]:
    """The database's answer. Raises OSError or ValueError."""
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(ADDRESS, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        content: dict[str, Any] = json.loads(answer.read(LARGEST_ANSWER))
        return content


def holes(pinned: list[tuple[str, str]], answer: dict[str, Any]) -> list[str]:
    """One line for each package with holes that are not accepted. ValueError for an answer of another form."""
    results = answer.get("results")
    if not isinstance(results, list) or len(results) != len(pinned):
        raise ValueError("not one result for each package")
    lines = []
    for (name, version), result in zip(pinned, results, strict=True):
        found = [hole["id"] for hole in result.get("vulns", []) if hole["id"] not in ACCEPTED]
        if found:
            lines.append(f"{name}=={version}: {', '.join(f'https://osv.dev/{number}' for number in found)}")
    return lines


def main(question: Callable[[list[dict[str, Any]]], dict[str, Any]] = ask) -> int:
    """Print what is known; the exit code."""
    pinned = pins(CONSTRAINTS.read_text(encoding="utf-8"))
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in pinned]
    try:
        lines = holes(pinned, question(queries))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"pins not audited: {ADDRESS} can't be asked ({error})")
        return 0
    print(*lines, sep="\n") if lines else print(f"no published hole in {len(pinned)} pinned versions")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
