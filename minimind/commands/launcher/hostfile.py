"""Hosts and their slots: a hostfile, and what ``--include`` and ``--exclude`` leave of it.

As DeepSpeed's launcher/runner.py reads them (``_parse_hostfile``, ``parse_resource_filter``), with one line where that
ends in a traceback, and where it starts another world than the file says: a host without slots would be waited for, and
pdsh takes ``node[1-2]`` for two hosts.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minimind.base.errors import UserError

ENTRY = re.compile(r"^(\S+)\s+slots=(\d+)(?!\S)")
HOST = re.compile(r"([\w.-]+@)?\w[\w.:%-]*")  # what ssh is given: never an option of its, or a list
AT_ONCE = 32  # hosts that are asked at once
SSH_SECONDS = 45  # a host that does not answer for so long would keep the launcher waiting; all ends within a minute


def read_hostfile(path: Path) -> dict[str, int]:
    """Slots by host, in the file's order. Raises UserError with file:line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
        raise UserError(f"{path}: the hostfile can't be read: {reason}") from error
    slots: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        found = ENTRY.match(line)
        if found is None:
            raise UserError(f'{path}:{number}: expected "HOST slots=N", got {line!r}')
        if found[1] in slots:
            raise UserError(f"{path}:{number}: {found[1]} stands twice: give each host one line")
        if HOST.fullmatch(found[1]) is None:
            raise UserError(f"{path}:{number}: {found[1]!r} is no name of a host: give each host a line")
        if not int(found[2]):
            raise UserError(f"{path}:{number}: {found[1]} has no slots: take the line out")
        slots[found[1]] = int(found[2])
    if not slots:
        raise UserError(f'{path}: the hostfile names no slots: write lines like "node1 slots=4"')
    return slots


def chosen_slots(slots: dict[str, int], include: str, exclude: str) -> dict[str, list[int]]:
    """What is left of ``slots`` by host, in its order. At most one of the two filters is given.

    Raises UserError for a host or slot that is not there.
    """
    active = {host: list(range(count)) for host, count in slots.items()}
    named = _parse(include or exclude)
    for host, numbers in named.items():
        if host not in active:
            raise UserError(f"{host!r} is none of the hosts: {', '.join(active)}")
        if missing := [number for number in numbers if number not in active[host]]:
            raise UserError(f"{host} has no slot {', '.join(map(str, missing))}: {_has(slots[host])}")
    if include:
        return {host: named[host] or active[host] for host in active if host in named}
    left = {
        host: [n for n in active[host] if named[host] and n not in named[host]] if host in named else active[host]
        for host in active
    }
    return {host: numbers for host, numbers in left.items() if numbers}


def _has(count: int) -> str:
    return "it has one, 0" if count == 1 else f"it has 0 to {count - 1}"


def _parse(text: str) -> dict[str, list[int]]:
    """``HOST[:SLOT,SLOT...]@HOST...``; no slots mean all of the host's."""
    named: dict[str, list[int]] = {}
    for part in text.split("@") if text else []:
        host, colon, numbers = part.partition(":")
        words = [word.strip() for word in numbers.split(",")] if colon else []
        if not host or not all(re.fullmatch(r"-?\d+", word) for word in words):
            raise UserError(f"{part!r} is not HOST or HOST:SLOT,SLOT with numbers as slots")
        named[host] = sorted({*named.get(host, []), *map(int, words)})
    return named


def unreachable(host: str, port: int | None) -> str | None:
    """Why the launcher's own test, ``ssh HOST hostname`` without a password, fails; None if it does not."""
    if shutil.which("ssh") is None:
        return "there is no ssh here"
    words = ["ssh", "-o", "PasswordAuthentication=no", *(["-p", str(port)] if port else []), host, "hostname"]
    try:
        quiet = subprocess.DEVNULL
        code = subprocess.run(words, stdin=quiet, stdout=quiet, stderr=quiet, timeout=SSH_SECONDS).returncode
    except subprocess.TimeoutExpired:
        return f"`ssh {host} hostname` does not answer"
    return f"`ssh {host} hostname` fails without a password" if code else None


def silent(hosts: Iterable[str], port: int | None) -> dict[str, str]:
    """The hosts that ssh does not enter now, with why. All are asked at once."""
    hosts = list(hosts)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = zip(hosts, pool.map(lambda host: unreachable(host, port), hosts), strict=True)
        return {host: why for host, why in problems if why is not None}


def is_here(host: str) -> bool:
    """Whether ``host`` is a name of this machine."""
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn())
