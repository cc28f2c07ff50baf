"""Who has not come to the meeting, by the names that the launcher knows; two real hosts: tests/hosts/test_faults.py."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.base.launcher import free_port
from minimind.training.process import meeting
from minimind.training.process.meeting import Meeting, PeerLost, hosts_of_ranks, meet
from tests.waiting import PATIENCE, wait_for


def test_the_hosts_of_ranks_are_those_that_the_launcher_was_told() -> None:
    told = base64.urlsafe_b64encode(json.dumps({"node1": [0, 1], "node2": [0]}).encode()).decode()
    for word, hosts in ((f"--world_info={told}", ["node1", "node1", "node2"]), ("--world_info=x", []), ("-x", [])):
        command = [sys.executable, "-c", "input()", word]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as launcher:
            wait_for(lambda pid=launcher.pid: Path(f"/proc/{pid}/cmdline").read_bytes())  # empty amid exec
            assert hosts_of_ranks(launcher.pid) == hosts
            launcher.communicate(b"\n")
    assert hosts_of_ranks(launcher.pid) == []


def test_one_host_does_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert meet(0.0) is None


def test_a_first_rank_that_is_not_there_is_named_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "RANK": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    with pytest.raises(PeerLost, match=rf"rank 0 did not answer at 127.0.0.1:{port} within 0 s \(Connection refused\)"):
        meet(0.3)


def test_ranks_that_are_missing_are_named_with_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "hosts_of_ranks", lambda launcher: ["node1", "node2"] if launcher else [])
    assert os.getppid()
    assert meeting._named([1]) == "rank 1 on node2"
    assert meeting._absent([1], 50.0).startswith("rank 1 on node2 did not start within 50 s: ")
    assert "rank 9 and 1 more did not" in meeting._absent(range(2, 11), 50.0)


AGREE = """
import json, sys
from minimind.training.process.meeting import PeerLost, meet
meeting = meet(float(sys.argv[1]))
try:
    print(json.dumps([meeting.gather([meeting.rank]), meeting.from_first(meeting.rank + 5)]), flush=True)
    if len(sys.argv) > 2:
        meeting._limit = 1.0
        if meeting.rank == 1:
            sys.exit()
    print(json.dumps(meeting.gather("again")), flush=True)
except PeerLost as lost:
    print(lost, flush=True)
"""


class Store(dict[str, str]):
    """A TCPStore of this process."""

    set = dict.__setitem__
    get = dict.__getitem__  # type: ignore[assignment]

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def ranks(*more: str, **variables: str) -> list[str]:
    """What two ranks print that meet and agree on two things and a third; ``more``: the second leaves before that."""
    port, running = str(free_port()), []
    for rank in range(2):
        world = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables}
        words, pipe = [sys.executable, "-c", AGREE, str(PATIENCE), *more], subprocess.PIPE
        running.append(subprocess.Popen(words, env={**os.environ, **world}, stdout=pipe, stderr=pipe, text=True))
    return [process.communicate(timeout=PATIENCE)[0] for process in running]


def test_the_ranks_agree_before_there_are_process_groups() -> None:
    assert ranks() == ['[[[0], [1]], 5]\n["again", "again"]\n'] * 2


def test_a_rank_that_leaves_between_is_named() -> None:
    first, second = ranks("leave")
    assert second == "[[[0], [1]], 5]\n"
    assert first.splitlines()[1] == "rank 1 has come and ended again, or can't be reached any more"


def test_an_agents_store_holds_another_meeting_for_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's agent keeps its store: what the ranks of the start before have left there is not of these."""
    store = Meeting(Store(), 0, 1, 0.0)
    first = store._key("here/1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert store._key("here/1") != first


def test_a_process_that_trains_twice_meets_anew() -> None:
    """Its store keeps what the first meeting agreed on; a second run read that run's address and key."""
    store = Store()
    assert [Meeting(store, 0, 1, 0.0).gather(word) for word in ("first", "second")] == [["first"], ["second"]]
    ranks = [Meeting(store, 1, 2, 0.0) for _ in range(2)]
    assert len({rank._key("here/1") for rank in ranks}) == 2


def test_ranks_that_are_numbered_by_hand_learn_that_they_are_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK and LOCAL_RANK of the first one are both 0: before the meeting it may be alone with the others."""

    class Met:
        rank = 1

        def __init__(self, *hosts: str) -> None:
            self.answers = [list(hosts), ["node1 means loopback", None]]

        def gather(self, value: object) -> list[object]:
            return self.answers.pop(0)

        all_raise = Meeting.all_raise

    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.1.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    meeting._require_a_way(Met("node1", "node1"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="node1 means loopback"):
        meeting._require_a_way(Met("node1", "node2"))  # type: ignore[arg-type]
