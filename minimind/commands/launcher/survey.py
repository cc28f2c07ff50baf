"""All hosts of a hostfile side by side before a run is tried: `minimind doctor --hostfile H`.

Each host is asked over ssh (probe.py), as the launcher would start it: in this directory, by this Python, without a
password. What must be equal is compared with the first host, where rank 0 is; what must hold for each is looked at. A
host that answers nonsense is a line of the report, like one that does not answer.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minimind.base.files import passing
from minimind.base.strict.json_text import is_number, parse_json
from minimind.commands.launcher.hostfile import AT_ONCE, SSH_SECONDS
from minimind.commands.launcher.probe import MARK, PACKAGES
from minimind.training.process.interfaces import addresses

SKEW = 1.0  # seconds that a clock may be off before it is said
MOST_OUTPUT = 1 << 18  # characters of a host's answer
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
_KINDS: dict[str, Callable[[Any], bool]] = {
    "hostname": lambda value: isinstance(value, str),
    "python": lambda value: isinstance(value, str),
    "packages": lambda value: isinstance(value, dict) and set(value) == set(PACKAGES),
    "code": lambda value: isinstance(value, str),
    "files": lambda value: isinstance(value, dict),
    "shared": lambda value: isinstance(value, bool),
    "port": lambda value: value is None or isinstance(value, str),
    "devices": lambda value: value is None or (isinstance(value, list) and len(value) == 2 and is_number(value[1])),
    "master": lambda value: value is None or isinstance(value, str),
    "loopback": lambda value: isinstance(value, bool),
    "interface": lambda value: value is None or isinstance(value, str),
    "clock": is_number,
}
Ask = Callable[[str, list[str]], str]


@dataclass(frozen=True)
class Answer:
    """What a host said, or why it said nothing. ``skew``: seconds that its clock is certainly off, 0 within the time
    that the question took."""

    host: str
    said: Mapping[str, Any] | None
    silence: str = ""
    skew: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """One thing that is wrong, and what to do. ``bad``: it would stop the run."""

    what: str
    bad: bool
    seen: str
    advice: str


def survey(slots: Mapping[str, int], port: int, directory: Path, files: Sequence[Path], ask: Ask) -> list[Answer]:
    """Ask every host. ``directory``: where the run would write; ``files``: what must be the same everywhere."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.is_dir())
    question: dict[str, Any] = {"master": _first(slots, ask), "port": port, "files": list(map(str, files))}
    content = secrets.token_hex(16)
    with ExitStack() as stack:
        token = ""
        with suppress(OSError):  # a directory that can't be written is found by the doctor's own checks
            token = stack.enter_context(passing(existing, content.encode()))
        question |= {"directory": str(existing), "token": token or "none", "content": content}
        words = remote_words(question)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda host: answer(host, words, ask), slots))


def _first(slots: Mapping[str, int], ask: Ask) -> str:
    """By which name or address the others look for the first host: what only ssh knows by its name (an alias of its
    configuration), the launcher calls by its first address (launcher/runner.py, ``hostname -I``)."""
    host = next(iter(slots))
    name = host.rpartition("@")[2]
    if not addresses(name):
        with suppress(OSError):
            return next(iter(ask(host, ["hostname -I"]).split()), name)
    return name


def remote_words(question: Mapping[str, Any]) -> list[str]:
    """What runs there: as DeepSpeed's launcher does, from this directory, by this Python, with PYTHONPATH."""
    probe = [sys.executable, "-m", "minimind.commands.launcher.probe", json.dumps(question)]
    path = os.environ.get("PYTHONPATH")
    command = [*(["env", f"PYTHONPATH={path}"] if path else []), *probe]
    return [f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command)}"]


def over_ssh(ssh_port: int | None) -> Ask:
    """Asking by ssh. Raises OSError with the reason when there is no answer."""

    def ask(host: str, words: list[str]) -> str:
        command = [*SSH, *(["-p", str(ssh_port)] if ssh_port else []), host, *words]
        try:
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SSH_SECONDS)
        except subprocess.TimeoutExpired:
            raise OSError(f"no answer in {SSH_SECONDS} s") from None
        if ended.returncode:
            lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {ended.returncode}"]
            raise OSError(lines[-1][:200])
        return ended.stdout.decode(errors="replace")[-MOST_OUTPUT:]

    return ask


def answer(host: str, words: list[str], ask: Ask) -> Answer:
    """One host's answer, checked."""
    before = time.time()
    try:
        text = ask(host, words)
        after = time.time()
        line = next((line for line in reversed(text.splitlines()) if line.startswith(MARK)), None)
        said = parse_json(line.removeprefix(MARK)) if line else None
        if not isinstance(said, dict) or not all(name in said and fits(said[name]) for name, fits in _KINDS.items()):
            raise OSError("its answer is none of this program's: another version of the code?")
    except (OSError, ValueError) as error:
        return Answer(host, None, str(error))
    clock = said["clock"]
    return Answer(host, said, skew=clock - after if clock > after else min(0.0, clock - before))


def judge(answers: Sequence[Answer], slots: Mapping[str, int], directory: Path) -> Iterator[Verdict]:
    """What would stop a run, or deserves a look."""
    for each in answers:
        if each.said is None:
            yield Verdict(each.host, True, each.silence, f"see to it that `ssh {each.host} hostname` works from here")
    heard = [each for each in answers if each.said is not None]
    for each in heard[1:]:
        yield from _unequal(heard[0], each)
    for each in heard:
        yield from _of_one(each, slots[each.host], directory)
    if answers[0].said is not None and (problem := answers[0].said["port"]):
        yield Verdict(f"{answers[0].host} port", True, str(problem), "rank 0 listens there")


def _unequal(first: Answer, other: Answer) -> Iterator[Verdict]:
    assert first.said is not None and other.said is not None
    rows = [("python", first.said["python"], other.said["python"])]
    rows += [(name, first.said["packages"][name], other.said["packages"][name]) for name in PACKAGES]
    for name, ours, theirs in rows:
        if ours != theirs:
            seen = f"{theirs or 'not installed'}, and {ours or 'not installed'} on {first.host}"
            yield Verdict(f"{other.host} {name}", True, seen, "install the versions of constraints.txt on both")
    if first.said["code"] != other.said["code"]:
        advice = "bring both to the same revision"
        yield Verdict(f"{other.host} code", True, f"is not the code of {first.host}", advice)
    for name, ours in first.said["files"].items():
        if (theirs := other.said["files"].get(name)) != ours:
            seen = f"{name} {'is not there' if theirs is None else f'is not that of {first.host}'}"
            yield Verdict(f"{other.host} files", True, seen, "copy it")


def _of_one(each: Answer, slots: int, directory: Path) -> Iterator[Verdict]:
    assert each.said is not None
    said, host = each.said, each.host
    if said["master"] is None:
        yield Verdict(f"{host} network", True, "does not know the first host's name", "add it to /etc/hosts or DNS")
    elif said["loopback"]:
        seen = f"the first host's name means {said['master']} there, which other hosts can't reach"
        yield Verdict(f"{host} network", True, seen, "take that line out of its /etc/hosts")
    if said["devices"] is not None and said["devices"][0] == "cuda" and said["devices"][1] < slots:
        seen = f"{said['devices'][1]} GPUs for {slots} slots"
        yield Verdict(f"{host} devices", True, seen, "give it fewer slots in the hostfile")
    if not said["shared"]:
        advice = "checkpoints are sent to the first host, data prepared on each; or give an --output-dir that all share"
        yield Verdict(f"{host} disk", False, f"does not share {directory} with this machine", advice)
    if abs(each.skew) > SKEW:
        yield Verdict(f"{host} clock", False, f"is {each.skew:+.0f} s off", "set up NTP: times of logs will not agree")


def table(answers: Sequence[Answer]) -> list[str]:
    """One line a host, the columns as wide as what is in them."""
    head = ["host", "ssh", "python", *PACKAGES, "code", "files", "disk", "clock", "port", "devices", "way to the first"]
    rows = [head, *map(_row, answers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(each: Answer) -> list[str]:
    if each.said is None:
        return [each.host, "no", *["-"] * (8 + len(PACKAGES))]
    said = each.said
    present = [str(value) for value in said["files"].values() if value]
    way = "loopback" if said["loopback"] else f"{said['interface'] or 'here'} to {said['master']}"
    return [
        each.host,
        "ok",
        said["python"],
        *(str(said["packages"][name] or "none") for name in PACKAGES),
        said["code"],
        f"{len(present)} of {len(said['files'])}",
        "shared" if said["shared"] else "own",
        f"{each.skew:+.0f} s",
        "taken" if said["port"] else "free",
        f"{said['devices'][1]} {said['devices'][0]}" if said["devices"] else "?",
        "unknown" if said["master"] is None else way,
    ]
