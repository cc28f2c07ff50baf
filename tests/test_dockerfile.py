"""The Dockerfile, read and compared with what it stands on: Docker isn't where the tests run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "machines.md"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PIP = re.compile(r"^(?:\S*python -m )?pip install (.*)$", re.MULTILINE)


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest of its line), comments and continuations taken out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, rest in lines]


def arguments() -> dict[str, str]:
    """The build arguments and their defaults."""
    pairs = (shlex.split(rest)[0].split("=", 1) for name, rest in instructions() if name == "ARG")
    return dict(pairs)


def make_words() -> list[str]:
    """The line that sets up, the build arguments put in."""
    line = next(rest for name, rest in instructions() if name == "RUN" and rest.startswith("make "))
    for name, value in arguments().items():
        line = line.replace(f"${name}", value)
    return shlex.split(line)


def pip_lines(text: str) -> list[str]:
    """What is installed, line by line, without switches that only tell pip how to look."""
    lines = (re.sub(r"--(disable-pip-version-check|no-cache-dir) ", "", line) for line in PIP.findall(text))
    return [" ".join(shlex.split(line)) for line in lines]


def test_every_instruction_is_one_of_dockers() -> None:
    known = {"FROM", "ARG", "RUN", "ENV", "WORKDIR", "COPY", "VOLUME", "CMD"}
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM" and names[-1] == "CMD" and set(names) == known
    assert names.index("COPY") < names.index("RUN", names.index("COPY"))


def test_the_base_image_has_a_python_that_is_supported() -> None:
    minor = re.fullmatch(r"python:3\.(\d+)-slim", dict(instructions())["FROM"])
    assert minor and 10 <= int(minor[1]) <= 13  # README, "Two commands"


def test_build_arguments_are_variables_of_the_makefile() -> None:
    assert set(arguments()) == {"TORCH_FLAGS", "EXTRAS"}
    words = make_words()
    assert words[:2] == ["make", "setup"] and re.search(r"^setup:", MAKEFILE, re.MULTILINE)
    for word in words[2:]:
        assert re.search(rf"^{word.partition('=')[0]} \?=", MAKEFILE, re.MULTILINE), word
    extras = (ROOT / "setup.cfg").read_text(encoding="utf-8").partition("[options.extras_require]")[2]
    assert all(re.search(rf"^{extra} =", extras, re.MULTILINE) for extra in arguments()["EXTRAS"].split(","))


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_recipe_is_the_readmes() -> None:
    words = [*make_words(), "VENV=/nowhere/venv"]
    printed = subprocess.run([words[0], "-n", "-B", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    flags, extras = arguments()["TORCH_FLAGS"], arguments()["EXTRAS"]
    documented = pip_lines((ROOT / "README.md").read_text(encoding="utf-8"))[:3]
    expected = [
        documented[0],
        documented[1].replace("constraints.txt torch", f"constraints.txt {flags} torch"),
        documented[2].replace("[test,data]", f"[{extras}]"),
    ]
    assert pip_lines(printed.stdout) == expected


def test_what_is_copied_is_enough_and_holds_nothing_private() -> None:
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "runs"} <= set(left_out)
    needed = ["Makefile", "setup.cfg", "constraints.txt", "minimind", "launch", "ds_configs", "configs"]
    assert all((ROOT / name).exists() and name not in left_out for name in needed)


def test_the_command_is_on_the_path() -> None:
    found = dict(instructions())
    folder = found["WORKDIR"] + "/.venv/bin"
    assert found["ENV"].startswith(f"PATH={folder}:$PATH ") and re.search(r"^VENV := \.venv$", MAKEFILE, re.MULTILINE)
    assert json.loads(found["CMD"])[0] == "minimind"


def test_the_page_builds_with_arguments_that_exist() -> None:
    lines = [
        shlex.split(line) for line in re.findall(r"^docker build .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    named = {word.partition("=")[0] for line in lines for at, word in enumerate(line) if line[at - 1] == "--build-arg"}
    assert len(lines) >= 2 and named and named <= set(arguments())
