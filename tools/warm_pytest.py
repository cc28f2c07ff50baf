"""pytest in forks of one process that has imported torch and DeepSpeed already, so that a few tests take a second.

Of tools/mutants.py, which starts it in a copy of the checkout: ``python warm_pytest.py MODULE...`` imports those
modules, nothing of the checkout, and forks for each line of its input. A line is a JSON object:

- ``paths``: the test files, the likeliest to fail first;
- ``known``: tests and their usual seconds. Others are left out, the quick ones go first, and the first failure ends
  it. None: all tests run, to learn this;
- ``cpu``: seconds of the processor that it and each process of it may take. None: any;
- ``report``: the file for what was learnt: the tests that passed, with their seconds, and the processor's of all.

Two lines answer: the process id of the fork, which leads a session of its own, and its exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

QUICK = 1.0  # seconds; a file's quick tests stay together, for the sake of its fixtures


class Order:
    """The tests that pass without a mutation, in the order in which they most cheaply fail."""

    def __init__(self, known: dict[str, float], paths: list[str]) -> None:
        self._known, self._paths = known, paths

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._known]
        items.sort(key=self._rank)

    def _rank(self, item: pytest.Item) -> tuple[bool, int]:
        return self._known[item.nodeid] >= QUICK, self._paths.index(item.nodeid.partition("::")[0])


class Learnt:
    """The seconds of the tests that pass, with their fixtures."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._not_passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._not_passed.add(report.nodeid)

    def passed(self) -> dict[str, float]:
        return {name: round(spent, 2) for name, spent in self.seconds.items() if name not in self._not_passed}


def serve(replies: int) -> None:
    """Fork for each line of the input."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.close(replies)
            os._exit(_pytest(json.loads(line)))
        os.write(replies, f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        os.write(replies, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _pytest(request: dict[str, Any]) -> int:
    """pytest's exit code, in the fork. Never raises: an error of pytest itself is a code, too."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    if request["cpu"] is not None:  # what goes round for ever ends sooner by this than by the clock of a busy machine
        resource.setrlimit(resource.RLIMIT_CPU, (request["cpu"], request["cpu"] + 5))
    learnt, known = Learnt(), request["known"]
    sys.dont_write_bytecode = known is not None  # written once, for the tests; a mutant's would be of no use
    plugin = learnt if known is None else Order(known, request["paths"])
    began = time.monotonic()
    options = ["-q", "-p", "no:cacheprovider", *(["-x"] if known is not None else [])]
    try:
        code = int(pytest.main([*options, *request["paths"]], plugins=[plugin]))
    except BaseException:
        return 99
    if known is None:
        found = {"passed": learnt.passed(), "seconds": time.monotonic() - began, "cpu": sum(os.times()[:4])}
        Path(request["report"]).write_text(json.dumps(found), encoding="utf-8")
    return code


def main() -> None:
    replies = os.dup(1)  # what imports print goes elsewhere
    os.dup2(2, 1)
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # else each fork's collections would copy all of it
    serve(replies)


if __name__ == "__main__":
    main()
