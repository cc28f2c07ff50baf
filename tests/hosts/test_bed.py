"""The test bed itself: two hosts that differ in all that hosts differ in, and nothing left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.bed import Bed, Missing, signal_to
from tests.waiting import PATIENCE, wait_for

PING = """
import socket, sys
with socket.create_connection((sys.argv[1], 9999)) as connection:
    print(connection.getpeername()[0], connection.recv(64).decode())
"""
PONG = """
import socket
with socket.create_server(("", 9999)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    connection.sendall(socket.gethostname().encode())
"""


def processes_of(bed: Bed) -> list[int]:
    return [pid for host in bed.hosts for pid in host.processes("")]


def interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def test_each_host_has_its_own_name_address_home_and_processes(bed: Bed) -> None:
    first, second = bed.hosts
    for host in bed.hosts:
        shown = host.run(["sh", "-c", "hostname; cd ~ && pwd; ip -o -4 addr; ps -e 2>/dev/null | wc -l; echo $$"])
        assert shown.splitlines()[:2] == [host.name, str(host.home)]
        assert f"{host.interface}    inet {host.address}/24" in shown
        assert int(shown.splitlines()[-1]) < 200  # a number of its own process namespace
    server = second.start([sys.executable, "-c", PONG])
    assert server.stdout and server.stdout.readline() == "listening\n"
    assert first.run([sys.executable, "-c", PING, "node2"]).split() == [second.address, "node2"]
    assert server.wait(PATIENCE) == 0


@pytest.mark.parametrize("fault", ["cut", "unplug"])
def test_a_cut_link_loses_all_and_a_mended_one_nothing(bed: Bed, fault: str) -> None:
    first, second = bed.hosts
    server = second.start([sys.executable, "-c", PONG])
    assert server.stdout and server.stdout.readline() == "listening\n"
    getattr(bed, fault)()
    attempt = PING.replace("9999)", "9999), 0.5")
    assert "Error" in first.start([sys.executable, "-c", attempt, "node2"]).communicate(timeout=PATIENCE)[0]
    bed.mend()
    assert first.run([sys.executable, "-c", PING, "node2"]).split() == [second.address, "node2"]
    assert server.wait(PATIENCE) == 0


def test_signals_reach_what_runs_on_a_host_and_kill_ends_all_of_it(bed: Bed) -> None:
    first, second = bed.hosts
    stopped, killed = (host.start(["sleep", str(PATIENCE)]) for host in bed.hosts)
    wait_for(lambda: first.processes("sleep") and second.processes("sleep"))
    signal_to(stopped)
    assert stopped.wait(PATIENCE) == -signal.SIGTERM
    second.kill()
    assert killed.wait(PATIENCE) != 0 and not second.processes("")


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    before, pids = interfaces(), []

    def fail() -> None:
        with Bed(tmp_path / "hosts") as bed:
            bed.hosts[0].start(["sleep", str(PATIENCE)])
            wait_for(lambda: bed.hosts[0].processes("sleep"))
            pids.extend(processes_of(bed))
            raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, Missing)) as failure:
        fail()
    if isinstance(failure.value, Missing):
        pytest.skip(str(failure.value))
    assert len(pids) >= 3 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert interfaces() == before


def test_nothing_is_left_when_the_tests_are_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tests.hosts.bed import Bed, Missing\n"
        f"try: bed = Bed(Path({str(tmp_path / 'hosts')!r})).__enter__()\n"
        "except Missing as missing: sys.exit(f'missing: {missing}')\n"
        "print(bed.hosts[0].pid, bed.hosts[1].pid, flush=True)\n"
        f"time.sleep({PATIENCE})\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout and process.stderr
    pids = process.stdout.readline().split()
    if not pids:
        pytest.skip(process.stderr.read().strip())
    process.kill()
    process.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_each_host_is_entered_by_ssh(ssh_bed: Bed) -> None:
    first, second = ssh_bed.hosts
    assert first.run(["ssh", "node2", "hostname; cd ~; pwd"]).split() == ["node2", str(second.home)]
    assert second.run(["ssh", "node1", "hostname"]).split() == ["node1"]
    if shutil.which("pdsh") is None:
        pytest.skip("no pdsh here: apt-get install pdsh")
    shown = first.run(["pdsh", "-R", "ssh", "-w", "node1,node2", "hostname"])
    assert sorted(shown.splitlines()) == ["node1: node1", "node2: node2"]
