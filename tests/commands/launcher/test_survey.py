"""The hosts of a hostfile side by side: made-up answers for what can be wrong, and this machine's own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from minimind.commands.launcher import survey
from minimind.commands.launcher.probe import MARK, PACKAGES, digest
from minimind.commands.launcher.survey import Answer, answer, judge, remote_words, table

SLOTS = {"node1": 2, "node2": 2}
GOOD: dict[str, Any] = {
    "hostname": "node1",
    "python": "3.11.2",
    "packages": dict.fromkeys(PACKAGES, "1.0"),
    "code": "3f2a91bc0d1e",
    "files": {"run.yaml": "aaaa"},
    "shared": True,
    "port": None,
    "devices": ["cuda", 2],
    "master": "10.77.0.1",
    "loopback": False,
    "interface": "lan1",
}


def told(host: str, **other: Any) -> Answer:
    text = f"Welcome to {host}\n{MARK}{json.dumps({**GOOD, 'clock': time.time(), **other})}\n"
    return answer(host, [], lambda host, words: text)


def verdicts(*answers: Answer) -> list[str]:
    found = judge(answers, SLOTS, Path("runs"))
    return [f"{'bad' if v.bad else 'note'} {v.what}: {v.seen}; {v.advice}" for v in found]


def test_hosts_that_agree_have_no_verdict() -> None:
    assert verdicts(told("node1"), told("node2")) == []


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"python": "3.10.1"}, "bad node2 python: 3.10.1, and 3.11.2 on node1"),
        ({"packages": {**GOOD["packages"], "torch": None}}, "bad node2 torch: not installed, and 1.0 on node1"),
        ({"code": "0" * 12}, "bad node2 code: is not the code of node1"),
        ({"files": {"run.yaml": None}}, "bad node2 files: run.yaml is not there; copy it"),
        ({"files": {"run.yaml": "bbbb"}}, "bad node2 files: run.yaml is not that of node1; copy it"),
        ({"shared": False}, "note node2 disk: does not share runs with this machine"),
        ({"master": None}, "bad node2 network: does not know the first host's name"),
        ({"loopback": True, "master": "127.0.1.1"}, "bad node2 network: the first host's name means 127.0.1.1 there"),
        ({"devices": ["cuda", 1]}, "bad node2 devices: 1 GPUs for 2 slots"),
        ({"clock": time.time() + 1e6}, "note node2 clock: is +"),
        ({"clock": 0.0}, "note node2 clock: is -"),
    ],
)
def test_what_is_wrong_with_a_host_is_said_with_its_name(other: dict[str, Any], says: str) -> None:
    (line,) = verdicts(told("node1"), told("node2", **other))
    assert line.startswith(says) and "\n" not in line


def test_only_the_first_host_needs_the_port() -> None:
    taken = "port 29500 is in use"
    (line,) = verdicts(told("node1", port=taken), told("node2", port=taken))
    assert line == "bad node1 port: port 29500 is in use; rank 0 listens there"


def test_a_silent_host_and_one_that_answers_nonsense_are_verdicts() -> None:
    def silent(host: str, words: list[str]) -> str:
        raise OSError("Permission denied (publickey).")

    lines = verdicts(answer("node1", [], silent), told("node2"))
    assert lines == ["bad node1: Permission denied (publickey).; see to it that `ssh node1 hostname` works from here"]
    nonsense = ["", "hello", MARK, f"{MARK}[]", f"{MARK}{{}}", MARK + "[" * 9999, f"{MARK}{json.dumps(GOOD)}"]
    nonsense.append(f"{MARK}{json.dumps({**GOOD, 'clock': 'noon'})}")
    for text in nonsense:
        assert answer("node1", [], lambda host, words, text=text: text).said is None  # type: ignore[misc]


def test_the_table_has_a_line_a_host_and_aligned_columns() -> None:
    head, first, second, third = table([told("node1"), told("a-longer-name", shared=False), Answer("node3", None)])
    assert head.split()[:4] == ["host", "ssh", "python", "torch"]
    assert first.index("3.11.2") == second.index("3.11.2") == head.index("python")
    assert "shared" in first and "own" in second and "lan1 to 10.77.0.1" in first
    assert third.split()[:3] == ["node3", "no", "-"]


def test_this_machine_answers_as_the_launcher_would_start_it(tmp_path: Path) -> None:
    """The words that ssh would be given, through a shell here, with a login's chatter before them."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.model").write_bytes(b"pieces")

    def shell(host: str, words: list[str]) -> str:
        (command,) = words
        return subprocess.run(["sh", "-c", f"echo hello; {command}"], check=True, capture_output=True, text=True).stdout

    files = [tmp_path / "tokenizer", tmp_path / "none.yaml"]
    first, second = survey.survey({"localhost": 1, "again": 1}, 29500, tmp_path / "runs", files, shell)
    assert first.said is not None and second.said is not None
    assert first.said["python"] == ".".join(map(str, sys.version_info[:3]))
    assert first.said["packages"]["torch"] and first.said["code"] == second.said["code"]
    assert first.said["shared"] and first.said["loopback"] and first.skew == 0.0
    assert list(first.said["files"].values()) == [digest(files[0]), None]
    assert list(tmp_path.iterdir()) == [tmp_path / "tokenizer"], "nothing is left"


def test_ssh_asks_for_no_password_and_names_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "ssh"
    fake.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n[ "$6" = good ] || { echo no route >&2; exit 255; }\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ask = survey.over_ssh(2222)
    words = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-p", "2222"]
    with pytest.raises(OSError, match="no route"):
        ask("node1", ["true"])
    fake.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    assert ask("node1", remote_words({})).splitlines()[: len(words) + 1] == [*words, "node1"]


def test_a_first_host_that_only_ssh_knows_is_looked_for_at_its_address() -> None:
    def ask(host: str, words: list[str]) -> str:
        assert (host, words) == ("me@alias.invalid", ["hostname -I"])
        return "10.77.0.1 172.17.0.1 \n"

    def silent(host: str, words: list[str]) -> str:
        raise OSError("no answer")

    assert survey._first({"me@alias.invalid": 2}, ask) == "10.77.0.1"
    assert survey._first({"me@alias.invalid": 2}, silent) == "alias.invalid"
    assert survey._first({"me@localhost": 2}, silent) == "localhost"
