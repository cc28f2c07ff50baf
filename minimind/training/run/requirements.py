"""What a valid config needs from this machine: `minimind doctor` shows it, and a run asks before it touches data.

``lacks`` imports for real what DeepSpeed would import later: a package can be there and broken, and a directory named
``tensorboard`` passes for one. Only what the config switches on is imported.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.findings import Finding
from minimind.base.hardware import Hardware
from minimind.base.problems import raise_problems
from minimind.config.deepspeed import Resolved
from minimind.config.run import RunConfig
from minimind.training.engine import builds

SMALL_LOCKED_MEMORY = 2**29  # bytes


@dataclass(frozen=True)
class Lack:
    """``what`` is asked for, the ``reason`` why it can't be had here, and what to do: one line."""

    what: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}; {self.advice}"


def require(resolved: Resolved, run: RunConfig, hardware: Hardware) -> list[Finding]:
    """Raise one UserError for all that is missing; what is only unwise comes back."""
    raise_problems([str(lack) for lack in lacks(resolved, run, hardware)], resolved.source)
    return remarks(resolved, hardware)


def lacks(resolved: Resolved, run: RunConfig, hardware: Hardware) -> list[Lack]:
    """All that would end this run after its data are ready."""
    checks: tuple[Callable[[Resolved], Iterator[Lack]], ...] = (_compiled, _optimizer, _monitors)
    found = [lack for check in checks for lack in check(resolved)]
    return [*found, *_attention(resolved, run, hardware), *_compile(resolved, run, hardware)]


def compiler_problem() -> tuple[str, str] | None:
    """What is missing for compiling an op, and where to get it; None if nothing is."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return f"no C++ compiler ({os.environ.get('CXX', 'c++')})", "apt install g++"
    if builds.find_ninja() is None:
        return "no ninja", "pip install ninja"
    return None


def _compiled(resolved: Resolved) -> Iterator[Lack]:
    """DeepSpeedCPUAdam, the one op that this trainer has compiled. A cached one needs ninja only."""
    if not resolved.offload or resolved.optimizer.type.lower() not in ("adam", "adamw"):
        return
    problem = compiler_problem()
    if problem and not (builds.cached("cpu_adam") and builds.find_ninja()):
        advice = f"{problem[1]}, or use a JSON without offload_optimizer"
        yield Lack("offload", f"DeepSpeedCPUAdam must be compiled, and there is {problem[0]}", advice)


def _optimizer(resolved: Resolved) -> Iterator[Lack]:
    if resolved.optimizer.type.lower() == "adamw8bit":
        yield from _importable("AdamW8bit", "bitsandbytes", "bitsandbytes.optim", "pip install 'minimind[bnb]'")


def _monitors(resolved: Resolved) -> Iterator[Lack]:
    """The directories of DeepSpeed's own monitors, of which the linter leaves these two on."""
    for name in ("tensorboard", "csv_monitor"):
        section = resolved.config.get(name, {})
        if not section.get("enabled"):
            continue
        directory = Path(section.get("output_path", "")) / section.get("job_name", "DeepSpeedJobName")
        if problem := _unwritable(directory):
            yield Lack(name, f"{directory} can't be written ({problem})", "give another output_path in the JSON")


def without_missing_monitor(resolved: Resolved) -> Resolved:
    """The same without tensorboard where its package can't be imported: a log never stops a run, and that is said."""
    name = "tensorboard"
    if not resolved.config.get(name, {}).get("enabled"):
        return resolved
    advice = "pip install 'minimind[tensorboard]', or switch it off in the JSON"
    off = [
        Finding("monitor-off", f"the JSON's {name} is switched off: {lack.reason}", lack.advice)
        for lack in _importable(name, name, "torch.utils.tensorboard", advice)
    ]
    if not off:
        return resolved
    config = {key: value for key, value in resolved.config.items() if key != name}
    return replace(resolved, config=config, findings=[*resolved.findings, *off])


def _importable(what: str, package: str, module: str, advice: str) -> Iterator[Lack]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = package if (error.name or "").partition(".")[0] == package else f"{error.name}, which {package} uses,"
        yield Lack(what, f"{missing} is not installed", advice)
    except Exception as error:  # a package may raise anything when it is broken
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        yield Lack(what, f"{package} can't be imported ({first})", advice)


def _unwritable(directory: Path) -> str | None:
    """Why ``directory`` could not be made, or written if it is there; None if it could."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        return f"{existing} is a file"
    return None if os.access(existing, os.W_OK | os.X_OK) else f"no permission in {existing}"


def _attention(resolved: Resolved, run: RunConfig, hardware: Hardware) -> Iterator[Lack]:
    """An attention form that was asked for and does not run here."""
    if run.attention_backend == "auto":
        return
    import torch

    from minimind.model.attention import check_backend

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(resolved.precision, torch.float32)
    try:
        check_backend(run.attention_backend, torch.device(hardware.device_type), dtype, run.model.head_dim)
    except UserError as error:
        what, _, rest = str(error).partition(": ")
        reason, _, advice = rest.rpartition(": ")
        yield Lack(what, reason, advice)


def _compile(resolved: Resolved, run: RunConfig, hardware: Hardware) -> Iterator[Lack]:
    """torch.compile on a CPU writes C++; at ZeRO stage 3 it fails."""
    if run.compile == "on" and resolved.stage == 3:
        reason = "on fails at ZeRO stage 3: the compiler sees the parameters before they are gathered, with size 0"
        yield Lack("compile", reason, "set compile: off, or use ZeRO stage 2")
    compiler = os.environ.get("CXX", "g++")
    if run.compile == "on" and hardware.device_type == "cpu" and shutil.which(compiler) is None:
        reason = f"on needs a C++ compiler and there is none ({compiler})"
        yield Lack("compile", reason, "apt install g++, or --set compile=off")


def remarks(resolved: Resolved, hardware: Hardware) -> list[Finding]:
    """What the run can live with: buffers pinned for a GPU must fit the limit on locked memory (`ulimit -l`)."""
    if not _pins(resolved) or hardware.device_type != "cuda" or sys.platform == "win32":
        return []
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or soft >= SMALL_LOCKED_MEMORY:
        return []
    message = f"ulimit -l is {soft / 2**20:.0f} MiB and offload pins its buffers"
    advice = 'raise it, or set "pin_memory": false'
    return [Finding("memlock", message, advice, values={"bytes": float(soft)})]


def _pins(resolved: Resolved) -> bool:
    """Whether an offload section keeps its buffers in pinned memory, as is DeepSpeed's default."""
    zero = resolved.config.get("zero_optimization", {})
    sections = [zero.get(name, {}) for name in ("offload_optimizer", "offload_param")]
    return any(section.get("device") == "cpu" and section.get("pin_memory", True) for section in sections)
