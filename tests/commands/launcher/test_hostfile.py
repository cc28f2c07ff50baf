"""A hostfile and its filters: read as the launcher does, and one line where that would be a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deepspeed.launcher.runner import _parse_hostfile, parse_inclusion_exclusion

from minimind.base.errors import UserError
from minimind.commands.launcher import hostfile
from minimind.commands.launcher.hostfile import chosen_slots, is_here, read_hostfile, unreachable

SLOTS = {"a": 4, "b": 2}


def test_hosts_and_slots_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# two\n\nnode2 slots=4\n  node1\tslots=2 # old\n\t\nme@n-3.example.org slots=1 max_slots=2\nfd00::1 slots=1\n"
    )
    expected = [("node2", 4), ("node1", 2), ("me@n-3.example.org", 1), ("fd00::1", 1)]
    assert list(read_hostfile(path).items()) == expected == list(_parse_hostfile(path.read_text().splitlines()).items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a slots=2\nb\n", r"hosts:2: expected \"HOST slots=N\", got 'b'"),
        (b"a slots=many\n", "hosts:1: expected"),
        (b"a slots=1\n\na slots=2\n", "hosts:3: a stands twice"),
        (b"# nobody\n", "names no slots"),
        (b"a slots=1\nb slots=0\n", "hosts:2: b has no slots: take the line out"),
        (b"a slots=2x\n", "hosts:1: expected"),
        (b"a slots = 2\n", "hosts:1: expected"),
        (b"a:2\n", "hosts:1: expected"),
        (b"node[1-2] slots=2\n", r"hosts:1: 'node\[1-2\]' is no name of a host: give each host a line"),
        (b"a,b slots=2\n", "'a,b' is no name of a host"),
        (b"-oProxyCommand=id slots=2\n", "'-oProxyCommand=id' is no name of a host"),  # ssh's own option
        (b"\xff\xfe", "not a text file in UTF-8"),
    ],
)
def test_a_bad_hostfile_is_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_hostfile(tmp_path / "hosts")
    with pytest.raises(UserError, match="can't be read"):
        read_hostfile(tmp_path)


@pytest.mark.parametrize(
    ("include", "exclude"),
    [("", ""), ("a", ""), ("b:1@a:3,0", ""), ("a:1@a:2", ""), ("", "a:0"), ("", "a"), ("", "b:0,1@a:1"), ("a: 1", "")],
)
def test_filters_leave_what_they_leave_in_the_launcher(include: str, exclude: str) -> None:
    theirs = parse_inclusion_exclusion(SLOTS, include, exclude)
    assert list(chosen_slots(SLOTS, include, exclude).items()) == list(theirs.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c", "'c' is none of the hosts: a, b"),
        ("a:0,4", "a has no slot 4: it has 0 to 3"),
        ("a:-1", "a has no slot -1"),
        ("a:x", "'a:x' is not HOST"),
        ("a:", "'a:' is not HOST"),
        ("a:0:1", "is not HOST"),
        ("a@", "'' is not HOST"),
        ("a:0,", "is not HOST"),
    ],
)
def test_a_filter_that_fits_nothing_is_one_line(text: str, message: str) -> None:
    for include, exclude in ((text, ""), ("", text)):
        with pytest.raises(ValueError):  # noqa: PT011 (the launcher's, of any message)
            parse_inclusion_exclusion(SLOTS, include, exclude)
        with pytest.raises(UserError, match=message):
            chosen_slots(SLOTS, include, exclude)


def test_ssh_is_tried_as_the_launcher_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert unreachable("node1", None) == "there is no ssh here"
    ssh = tmp_path / "ssh"
    pipe = tmp_path / "pipe"  # nobody writes to it
    os.mkfifo(pipe)
    ssh.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ntest "$3" = silent && : < {pipe}\ntest "$5" = node1\n')
    ssh.chmod(0o755)
    assert unreachable("node1", 2222) is None
    assert (tmp_path / "words").read_text() == "-o PasswordAuthentication=no -p 2222 node1 hostname\n"
    assert unreachable("node2", 2222) == "`ssh node2 hostname` fails without a password"
    monkeypatch.setattr(hostfile, "SSH_SECONDS", 0.0)
    assert unreachable("silent", None) == "`ssh silent hostname` does not answer"


def test_names_of_this_machine() -> None:
    assert is_here("localhost") and not is_here("another.example")
