"""A mutant and the tests: a copy of the checkout to write mutants into, and a warm process to run the tests there."""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

COPIED = ("minimind", "tests", "launch", "ds_configs", "configs", "benchmarks", "docs", "tools")
FILES = ("pyproject.toml", "setup.cfg", "constraints.txt", "Makefile", "README.md", "README.zh.md")
HEAVY = ("torch", "deepspeed", "numpy", "pydantic", "typer", "yaml", "hypothesis", "tokenizers", "safetensors.torch")
TIMES = 3.0  # a mutant may take so many times the clock's and the processor's seconds of the unchanged module, and ...
SPARE = 30.0  # ... so many more, ...
MOST_CPU = 1000  # ... of the processor's no more than these


class Copy:
    """A checkout of its own. ``heavy``: what its process imports beforehand."""

    def __init__(self, root: Path, directory: Path, heavy: Sequence[str] = HEAVY) -> None:
        self._directory, self._heavy = directory, heavy
        self._learnt = directory.with_name(f"{directory.name}-learnt")
        self._learnt.mkdir(parents=True, exist_ok=True)
        self._warm: Warm | None = None
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            if (root / name).is_file():
                shutil.copy(root / name, directory / name)
        # By contents, not by time: a mutant may have the length and the second of what it replaces.
        compileall.compile_dir(
            directory / "minimind", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH, force=True
        )

    def judge(self, module: Path, code: str, tests: Sequence[Path]) -> tuple[str, float]:
        """What the ``tests`` (relative to the checkout) make of the module (relative to the package) with this code:
        "caught", "timeout" or "survived", and its seconds. Raises RuntimeError: none of them passes as it is."""
        learnt = [self._usual(path) for path in tests]
        known = {name: seconds for each in learnt for name, seconds in each["passed"].items()}
        if not known:
            raise RuntimeError(f"these tests fail without any mutation: {' '.join(map(str, tests))}")
        target = self._directory / "minimind" / module
        original = target.read_text(encoding="utf-8")
        target.write_text(code, encoding="utf-8")
        began = time.monotonic()
        limit, cpu = (TIMES * sum(each[clock] for each in learnt) + SPARE for clock in ("seconds", "cpu"))
        try:
            outcome = self._pytest(
                {"paths": list(map(str, tests)), "known": known, "cpu": min(int(cpu), MOST_CPU)}, limit
            )
        finally:
            target.write_text(original, encoding="utf-8")
        verdict = {None: "timeout", -signal.SIGXCPU: "timeout", 0: "survived"}.get(outcome, "caught")
        return verdict, time.monotonic() - began

    def _usual(self, path: Path) -> dict[str, Any]:
        """Which tests of the file pass as it is, and the seconds of all: learnt once for a file's contents."""
        digest = hashlib.sha256((self._directory / path).read_bytes()).hexdigest()[:16]
        report = self._learnt / f"{path.stem}-{digest}.json"
        if not report.exists():
            self._pytest({"paths": [str(path)], "known": None, "cpu": None, "report": str(report)}, None)
        if not report.exists():
            raise RuntimeError(f"pytest ended before its time in {path}")
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found

    def _pytest(self, request: dict[str, Any], limit: float | None) -> int | None:
        if self._warm is None:
            self._warm = Warm(self._directory, self._heavy)
        return self._warm.run(request, limit)

    def close(self) -> None:
        if self._warm is not None:
            self._warm.close()


class Warm:
    """warm_pytest.py in the directory ``checkout``."""

    def __init__(self, checkout: Path, heavy: Sequence[str]) -> None:
        script = Path(__file__).with_name("warm_pytest.py")
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(script), *heavy],
            cwd=checkout,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def run(self, request: dict[str, Any], limit: float | None) -> int | None:
        """pytest's exit code; None: it took longer than ``limit`` seconds. Whatever ranks it has left are ended."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        child = int(self._answer(None) or 0)
        code = self._answer(limit)
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(child, signal.SIGKILL)
        if code is None:
            self._answer(None)
        return None if code is None else int(code)

    def _answer(self, limit: float | None) -> str | None:
        """Its next line; None: not within ``limit`` seconds."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], limit)[0]:
            return None
        line = b""
        while not line.endswith(b"\n"):
            read = self._process.stdout.read(1)
            if not read:
                raise RuntimeError("the process that runs the tests has ended")
            line += read
        return line.decode()

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
