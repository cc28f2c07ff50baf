"""Two hosts on one machine: namespaces with a network, processes, a hostname, mounts and a home of their own.

    with Bed(directory) as bed:
        first, second = bed.hosts
        process = first.start(["deepspeed", "--no_ssh", ...], GLOO_SOCKET_IFNAME=first.interface)
        bed.cut(); bed.mend(); second.kill()

A host is a process (`unshare`) that is the first of its own process namespace; the two are joined by a pair of virtual
interfaces that exist in their network namespaces only. Nothing has a name outside, so any number of beds stand beside
each other, and all of it is gone with the host's first process: that ends when this process does, however it ends.
Files are shared but for ``/etc/hosts``, ``/etc/passwd`` (it says where the home is) and ``/run``; the hosts' homes
differ. A stop by ``pkill``, which DeepSpeed's pdsh runner sends, reaches the processes of its own host only.

`Missing` says what this machine lacks or forbids. Works as root, and in ``unshare --map-root-user --net --mount``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from minimind.training.process.orphans import children
from tests.waiting import PATIENCE, wait_for

ROOT = Path(__file__).parents[2]
NAMES = ("node1", "node2")
NETWORK = "10.77.0"
NOBODY = "02:00:00:00:00:01"  # a hardware address that no interface has: what is sent there is lost without a word
PACKAGES = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
}
LAUNCHERS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_SIZE",
    "CROSS_",
    "MASTER_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "GLOO_",
    "NCCL_",
)
# Collects the orphans, and ends with the process that holds its stdin; with it ends every process of the host.
FIRST = (
    "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('ready', flush=True); sys.stdin.read()"
)
SETUP = """
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/sshd
hostname "$2"
ip link set lo up
exec "$3" -c "$4"
"""
SSH_CLIENT = """
Host *
  IdentityFile {key}
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


class Missing(Exception):
    """What this machine lacks, or does not permit, and what would help."""


class Host:
    """One of the two; made by `Bed`."""

    def __init__(self, name: str, address: str, interface: str, directory: Path) -> None:
        self.name, self.address, self.interface = name, address, interface
        self.home = directory / "home"
        self._directory = directory

    def boot(self, hosts: str) -> None:
        """Start its first process. ``hosts``: the text of its /etc/hosts. Raises Missing."""
        self.home.mkdir(parents=True)
        self.home.chmod(0o700)
        (self._directory / "hosts").write_text(hosts)
        (self._directory / "passwd").write_text(passwd(self.home))
        words = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        words += ["sh", "-ec", SETUP, "sh", str(self._directory), self.name, sys.executable, FIRST]
        pipe = subprocess.PIPE
        self._outer = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        assert self._outer.stdout and self._outer.stderr
        if self._outer.stdout.readline() != "ready\n":
            raise Missing(f"namespaces are not permitted here: {self._outer.stderr.read().strip()}")
        (self.pid,) = children(self._outer.pid)  # as seen from outside
        self._namespace = _namespace(self.pid)
        # The network stays when the host dies: with it would go the other end of the cable, the other host's interface.
        self._network = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)

    def command(self, words: Sequence[str | Path]) -> list[str]:
        """What runs ``words`` on this host."""
        namespaces = ["--net", "--mount", "--uts", "--pid", f"--wd={ROOT}"]
        return ["nsenter", f"--target={self.pid}", *namespaces, "--", *map(str, words)]

    def environment(self, **more: str) -> dict[str, str]:
        """Of a login: this process's, without what a launcher has set, with the host's home and this project."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        own = {"HOME": str(self.home), "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return {**kept, **own, **more}

    def start(
        self, words: Sequence[str | Path], output: IO[Any] | int = subprocess.PIPE, **environment: str
    ) -> subprocess.Popen[str]:
        """Run ``words`` from the project's root, both streams to ``output``. Signals: `signal_to`, not the Popen's."""
        return subprocess.Popen(
            self.command(words),
            cwd=ROOT,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, words: Sequence[str | Path], **environment: str) -> str:
        """The output of ``words``, which must end well."""
        process = self.start(words, **environment)
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{self.name}: {list(map(str, words))}: {process.returncode}\n{output}"
        return output

    def processes(self, word: str) -> list[int]:
        """Pids, as seen from outside, of this host's processes with ``word`` in their command lines."""
        return [pid for pid in _pids() if _namespace(pid) == self._namespace and word in _command_line(pid)]

    def kill(self) -> None:
        """Everything at once, as by a lost power supply, but that the kernel still closes the connections."""
        if self._outer.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # the kernel kills the others of the namespace before it lets this one go
            self._outer.communicate(timeout=PATIENCE)
            wait_for(lambda: not self.processes(""))

    def close(self) -> None:
        """End it, and take its network away. Once."""
        self.kill()
        os.close(self._network)

    def serve_ssh(self, key: Path) -> None:
        """An ssh server that the other host may enter without a password, and a client with the key."""
        server = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if server is None or shutil.which("ssh") is None:
            raise Missing("no ssh server here: apt-get install openssh-server openssh-client")
        ssh = self.home / ".ssh"
        ssh.mkdir(mode=0o700)
        (ssh / "config").write_text(SSH_CLIENT.format(key=key))
        options = {"UsePAM": "no", "PermitRootLogin": "prohibit-password", "PidFile": "none", "StrictModes": "no"}
        options |= {"HostKey": str(key), "AuthorizedKeysFile": f"{key}.pub", "ListenAddress": "0.0.0.0"}
        words = [server, "-D", "-e", "-f", "/dev/null", *(f"-o{name}={value}" for name, value in options.items())]
        log = (self._directory / "sshd.log").open("w")
        daemon = self.start(words, log)
        wait_for(lambda: "listening" in (self._directory / "sshd.log").read_text(), daemon)


class Bed:
    """The two hosts, up inside a ``with`` block. Raises Missing on entering."""

    def __init__(self, directory: Path) -> None:
        """``directory``: for the hosts' homes and files; made if need be."""
        interfaces = ("lan1", "lan2")
        self.directory = directory
        self.hosts = [
            Host(name, f"{NETWORK}.{number}", interface, directory / name)
            for number, (name, interface) in enumerate(zip(NAMES, interfaces, strict=True), start=1)
        ]
        self._stack, self._is_cut = ExitStack(), False

    def __enter__(self) -> Bed:
        absent = {PACKAGES[command] for command in PACKAGES if shutil.which(command) is None}
        if absent or sys.platform != "linux":
            raise Missing(f"two hosts need Linux and {', '.join(sorted(absent) or PACKAGES)}: apt-get install them")
        with ExitStack() as stack:
            for host in self.hosts:
                host.boot(self._names(host))
                stack.callback(host.close)
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def cut(self) -> None:
        """Both interfaces stay up, and what either sends is lost: a switch that died, or a firewall that drops."""
        for host, peer in (self.hosts, self.hosts[::-1]):
            self._ip(host, "neigh", "replace", *_peer(host, peer), "lladdr", NOBODY, "nud", "permanent")
        self._is_cut = True

    def unplug(self) -> None:
        """The cable is pulled: the second host's interface is down, the first one's has no carrier."""
        self._ip(self.hosts[1], "link", "set", self.hosts[1].interface, "down")

    def mend(self) -> None:
        """After `cut` or `unplug`; also after neither."""
        self._ip(self.hosts[1], "link", "set", self.hosts[1].interface, "up")
        for host, peer in (self.hosts, self.hosts[::-1]) if self._is_cut else ():
            self._ip(host, "neigh", "del", *_peer(host, peer))
        self._is_cut = False

    def serve_ssh(self) -> None:
        """ssh from each host to each without a password. Raises Missing."""
        key = self.directory / "key"
        if shutil.which("ssh-keygen") is None:
            raise Missing("no ssh here: apt-get install openssh-client openssh-server")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        for host in self.hosts:
            host.serve_ssh(key)

    def hostfile(self, slots: int = 1) -> Path:
        """A hostfile with both hosts."""
        path = self.directory / "hostfile"
        path.write_text("".join(f"{host.name} slots={slots}\n" for host in self.hosts))
        return path

    def _names(self, host: Host) -> str:
        return "127.0.0.1 localhost\n" + "".join(f"{each.address} {each.name}\n" for each in self.hosts)

    def _join(self) -> None:
        first, second = self.hosts
        pair = ["link", "add", first.interface, "netns", str(first.pid), "type", "veth"]
        pair += ["peer", "name", second.interface, "netns", str(second.pid)]
        done = subprocess.run(["ip", *pair], capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"no virtual interfaces here: {done.stderr.strip()}")
        for host in self.hosts:
            self._ip(host, "addr", "add", f"{host.address}/24", "dev", host.interface)
            self._ip(host, "link", "set", host.interface, "addrgenmode", "none")  # no second way by IPv6
            self._ip(host, "link", "set", host.interface, "up")

    def _ip(self, host: Host, *words: str) -> None:
        host.run(["ip", *words])


def _peer(host: Host, peer: Host) -> list[str]:
    return [peer.address, "dev", host.interface]


def signal_to(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> None:
    """Send a signal to what `Host.start` runs; `nsenter`, which the Popen is, would keep it for itself."""
    for pid in children(process.pid):
        os.kill(pid, number)


def passwd(home: Path) -> str:
    """This machine's users, this one at ``home``: ssh, sshd and ``~`` ask there, whatever HOME says."""
    lines = [list(map(str, entry)) for entry in pwd.getpwall()]
    own = str(os.geteuid())
    return "".join(":".join([*line[:5], str(home) if line[2] == own else line[5], line[6]]) + "\n" for line in lines)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it is gone
        return ""


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def outcome(processes: Mapping[str, subprocess.Popen[str]]) -> dict[str, tuple[int, str]]:
    """By name, the exit code and the output, once all have ended."""
    return {
        name: (process.returncode, text)
        for name, process in processes.items()
        for text in [process.communicate(timeout=PATIENCE)[0]]
    }
