"""A new order of the tests at each run, printed and repeatable: no test may need what another left behind.

A pytest plugin (conftest.py registers it). Files come in the order of a hash of the seed and their name, and so do the
tests of a file: any choice of tests (``-k``, one file, half of the files) keeps the order that it has in the whole, so
a failure is narrowed down with the same seed. Files stay whole, as their fixtures are.
``--order-seed N`` repeats an order, ``--order-seed off`` takes the files as they are written. All workers of xdist get
the seed of the process that started them.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import pytest

OFF = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--order-seed",
        default=None,
        metavar="N",
        help="seed of the order of the tests (default: a new one, printed); off: as they are written",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    sent: dict[str, str] = getattr(config, "workerinput", {})  # in a worker of xdist
    if config.option.order_seed is None:
        config.option.order_seed = sent.get("order_seed") or str(secrets.randbelow(10**6))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of xdist, before it starts a worker."""
    node.workerinput["order_seed"] = node.config.option.order_seed


def describe(config: pytest.Config) -> str:
    return f"order of the tests: --order-seed {config.option.order_seed}"


def pytest_report_header(config: pytest.Config) -> str:
    return describe(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Again where something failed: -q leaves the header out."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(describe(config))


def rank(seed: str, name: str) -> bytes:
    """Where ``name`` stands in the order of ``seed``."""
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.option.order_seed
    if seed != OFF:
        items.sort(key=lambda item: (rank(seed, item.nodeid.partition("::")[0]), rank(seed, item.nodeid)))
