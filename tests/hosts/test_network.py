"""The way between two hosts, as a rank and the doctor see it: the routed interface, and a name that leads nowhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.hosts.bed import Bed, Host
from tests.waiting import PATIENCE

ENTER = (
    "import json, os\nfrom minimind.training.process.start import enter_world\nenter_world()\n"
    "print(json.dumps({name: os.environ.get(name) for name in ('GLOO_SOCKET_IFNAME', 'NCCL_SOCKET_IFNAME')}))\n"
)


def enter(host: Host, rank: int, **more: str) -> tuple[int, str]:
    """A rank's first moment on ``host``: exit code, and the interfaces or the line."""
    world = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    process = host.start([sys.executable, "-c", ENTER], **world, MASTER_ADDR="node1", MASTER_PORT="29600", **more)
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output.strip()


def rename(bed: Bed, host: Host, address: str) -> None:
    """The line that Debian's installer writes: the host's own name, or node1's, is an address of loopback."""
    file = bed.directory / host.name / "hosts"
    file.write_text(file.read_text().replace("10.77.0.1 ", f"{address} "))  # the same file: it is mounted


def test_the_interface_towards_the_master_is_taken_on_both_hosts(bed: Bed) -> None:
    for rank, host in enumerate(bed.hosts):
        code, output = enter(host, rank)
        assert code == 0, output
        assert json.loads(output) == {
            "GLOO_SOCKET_IFNAME": host.interface,
            "NCCL_SOCKET_IFNAME": f"={host.interface}",
        }


def test_a_master_that_is_loopback_is_refused_on_its_own_host_too(bed: Bed) -> None:
    for rank, host in enumerate(bed.hosts):
        rename(bed, host, "127.0.1.1")
        code, output = enter(host, rank)
        assert code == 2 and output.count("\n") == 0
        assert f"MASTER_ADDR=node1 is 127.0.1.1 on {host.name}" in output and "/etc/hosts" in output
    named = {"GLOO_SOCKET_IFNAME": "lan1", "NCCL_SOCKET_IFNAME": "lan1"}
    assert enter(bed.hosts[0], 0, **named) == (0, json.dumps(named))
    assert enter(bed.hosts[1], 1, **named)[0] == 2, "it would look for the master at home"


def test_the_doctor_shows_both_hosts_side_by_side(ssh_bed: Bed, tmp_path: Path) -> None:
    first, second = ssh_bed.hosts
    hostfile = ssh_bed.hostfile()
    yaml, own = tmp_path / "run.yaml", tmp_path / "own.yaml"
    yaml.write_text("max_seq_length: 64\n")
    own.write_text("max_seq_length: 32\n")
    words = [sys.executable, "-m", "minimind.cli", "doctor", "--hostfile", hostfile, "--output-dir", tmp_path / "runs"]

    output = first.run(["sh", "-c", '"$@"; true', "sh", *words, "--config", yaml])
    rows = [line.split() for line in output.splitlines() if line.startswith("node")]
    assert [row[:2] for row in rows] == [["node1", "ok"], ["node2", "ok"]]
    assert rows[0][2:10] == rows[1][2:10], "python, versions, code, files"
    assert "lan2 to 10.77.0.1" in output and "2 hosts agree" in output

    rename(ssh_bed, second, "127.0.1.1")
    second.run(["mount", "--bind", str(own), str(yaml)])
    output = first.run(["sh", "-c", '"$@"; true', "sh", *words, "--config", yaml])
    assert "node2 network" in output and "the first host's name means 127.0.1.1 there" in output
    assert f"{yaml} is not that of node1" in output
