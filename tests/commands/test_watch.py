"""The page is served on loopback, kept up to date, and shows what became of a run. Nothing is written."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.commands.watch import Watch, watch
from tests.commands.page.runs import about, add, content, end, finished, rollback, train, write
from tests.waiting import PATIENCE

pytest.importorskip("uvicorn")


def _get(app: Watch, target: str, method: str = "GET") -> tuple[int, str]:
    """Status and body, past the front."""
    sent: list[dict[str, Any]] = []
    path, _, query = target.partition("?")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": []}
    asyncio.run(app(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], sent[1]["body"].decode()


def test_the_page_and_what_is_new(tmp_path: Path) -> None:
    run = write(tmp_path / "a", [about(9), *map(train, (1, 2, 3))])
    before = set(run.iterdir())
    app = Watch([run])
    value = content(_get(app, "/")[1])
    (shown,) = value["runs"]
    assert value["live"] and shown["train"]["step"] == [1, 2, 3]
    since = f"/news?since={shown['generation']}.{shown['number']}"
    assert json.loads(_get(app, since)[1])[0].keys() == {"generation", "number", "state"}
    add(run, [train(4), *rollback(4, 2), train(3), end(3, "failed")])
    (news,) = json.loads(_get(app, since)[1])
    assert (news["train"]["step"], news["keep"], news["state"]["code"]) == ([3], 3, "failed")
    write(run, [about(9), train(1)])  # another run in its place
    (news,) = json.loads(_get(app, f"/news?since=0.{news['number']}")[1])
    assert news["whole"] and news["train"]["step"] == [1]
    assert set(run.iterdir()) == before


def test_a_run_is_waited_for_and_a_broken_one_is_said(tmp_path: Path) -> None:
    app = Watch([tmp_path])
    (shown,) = content(_get(app, "/")[1])["runs"]
    assert shown["state"]["code"] == "empty"
    write(tmp_path, [about(9), train(1)])
    (news,) = json.loads(_get(app, "/news?since=0.0")[1])
    assert news["train"]["step"] == [1]
    add(tmp_path, [train(2, loss="low")])
    (news,) = json.loads(_get(app, "/news?since=0.2")[1])
    assert news["state"]["code"] == "unreadable" and "metrics.jsonl:3" in news["state"]["message"]


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/news?since=0.1-0.1", "GET", 404),
        ("/news?since=0.x", "GET", 404),
        ("/news", "GET", 404),
        ("/metrics.jsonl", "GET", 404),
        ("/../a", "GET", 404),
        ("/", "POST", 405),
        ("/", "HEAD", 200),
    ],
)
def test_nothing_else_is_answered(tmp_path: Path, target: str, method: str, status: int) -> None:
    assert _get(Watch([write(tmp_path, finished())]), target, method)[0] == status


def test_no_directory_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no directory: give the output directory"):
        watch([tmp_path / "nothing"], 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    run = write(tmp_path / "run", [about(9), train(1)])
    command = [sys.executable, "-m", "minimind.cli", "watch", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found is not None, line
        yield process, found[0], run
        process.kill()


def test_the_command_serves_and_ends_quietly(served: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, address, run = served
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert content(answer.read().decode())["runs"][0]["label"] == run.name
    stranger = urllib.request.Request(address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(stranger, timeout=PATIENCE)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
