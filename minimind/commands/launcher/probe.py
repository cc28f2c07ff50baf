"""What one host of a hostfile says of itself: ``python -m minimind.commands.launcher.probe`` there, over ssh.

One line of JSON on stdout, behind ``MARK``: what a login shell prints before it is no part of it. Imports neither torch
nor DeepSpeed; changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import platform
import socket
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from minimind.base.display import say
from minimind.base.files import read_inside, read_named
from minimind.base.launcher import port_problem
from minimind.base.shipped import PACKAGE
from minimind.commands.launcher.devices import count_devices
from minimind.training.process.interfaces import addresses, interface_towards, is_loopback

MARK = "minimind-probe:"
PACKAGES = ("torch", "deepspeed", "numpy", "sentencepiece")  # whose version decides what is computed


def look(question: dict[str, Any]) -> dict[str, Any]:
    """The answers. ``question``: ``master`` and ``port``, ``directory`` with a file ``token`` that holds ``content``,
    and ``files`` whose contents are compared."""
    port = question["port"]
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "code": code(),
        "files": {name: digest(Path(name)) for name in question["files"]},
        "shared": _sees(Path(question["directory"]), question["token"], question["content"].encode()),
        "port": port_problem(port),
        "devices": count_devices(),
        **_way(question["master"]),
        "clock": time.time(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def code() -> str:
    """A hash of this package's modules: equal on two hosts if they run the same."""
    every = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        every.update(f"{path.relative_to(PACKAGE)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return every.hexdigest()[:12]


def digest(path: Path) -> str | None:
    """A hash of a file, or of the files in a directory; None if there is none that can be read."""
    try:
        if path.is_dir():
            names = sorted(file.name for file in path.iterdir() if file.is_file())
            content = b"".join(name.encode() + hashlib.sha256(read_inside(path, name)).digest() for name in names)
        else:
            content = read_named(path)
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()[:12]


def _sees(directory: Path, token: str, content: bytes) -> bool:
    try:
        return read_inside(directory, token) == content
    except OSError:
        return False


def _way(master: str) -> dict[str, Any]:
    """The way to the first host: its address here, and the interface; or that the name leads back."""
    found = addresses(master)
    return {
        "master": found[0] if found else None,
        "loopback": bool(found) and all(map(is_loopback, found)),
        "interface": interface_towards(found[0]) if found else None,
    }


def main(words: Sequence[str]) -> None:
    """Answer the question ``words[0]``, which is JSON."""
    say(f"\n{MARK}{json.dumps(look(json.loads(words[0])))}")


if __name__ == "__main__":
    main(sys.argv[1:])
