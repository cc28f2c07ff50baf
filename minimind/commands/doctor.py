"""``minimind doctor``: is this machine ready, and would this config start? Nothing is changed and nothing is
built.

A check is a small function that returns what it saw; only ``run_doctor`` prints. "bad" stops a run, "note" does
not.
With a hostfile all its hosts are asked, too (commands/launcher/survey.py); of each only what a run over several needs.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from minimind.base.command_lines import typed
from minimind.base.display import say
from minimind.base.errors import UserError
from minimind.base.hardware import Hardware, choose_config, detect, kind_by_name, purpose_of
from minimind.base.launcher import port_problem
from minimind.base.shipped import from_here
from minimind.commands.launcher import survey
from minimind.commands.launcher import words as launch_words
from minimind.commands.launcher.hostfile import read_hostfile
from minimind.config.deepspeed import Resolved, resolve
from minimind.config.deepspeed.source import chosen_source
from minimind.config.run import RunConfig, load_run_config
from minimind.training.engine import build_lock, builds
from minimind.training.engine.deepspeed_fixes import version_problem
from minimind.training.run.requirements import compiler_problem, lacks, remarks, without_missing_monitor

REQUIRED = (
    "torch",
    "deepspeed",
    "sentencepiece",
    "numpy",
    "pydantic",
    "pyyaml",
    "safetensors",
    "typer",
    "rich",
    "matplotlib",
)
OPTIONAL = {
    "wandb": "report_to: wandb",
    "tensorboard": "report_to: tensorboard",
    "swanlab": "report_to: swanlab",
    "bitsandbytes": "AdamW8bit (ds_configs/adamw8bit.json)",
    "transformers": "checking an export against Hugging Face",
}


NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")  # is there while the driver is loaded


@dataclass(frozen=True)
class Check:
    """One line of the report; ``advice`` says what to do unless all is well."""

    name: str
    status: Literal["ok", "note", "bad"]
    seen: str
    advice: str = ""


def check_python() -> Check:
    """Python 3.10 or newer."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 10):  # noqa: UP036 (the check is for people who run it on an old one)
        return Check("python", "bad", version, "use Python 3.10 or newer")
    return Check("python", "ok", f"{version} at {sys.executable}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_packages() -> list[Check]:
    """Required and optional packages and their versions; DeepSpeed's must be the proven one."""
    versions = {name: _version(name) for name in REQUIRED}
    missing = [name for name, version in versions.items() if version is None]
    checks = [
        Check("packages", "bad", f"missing: {', '.join(missing)}", "run `make`, or pip install -e . -c constraints.txt")
        if missing
        else Check(
            "packages", "ok", ", ".join(f"{name} {versions[name]}" for name in ("torch", "numpy", "sentencepiece"))
        )
    ]
    if (deepspeed := versions["deepspeed"]) is not None:
        problem = version_problem(deepspeed)
        checks.append(Check("deepspeed", "bad" if problem else "ok", deepspeed, problem or ""))
    for name, purpose in OPTIONAL.items():
        if _version(name) is None:
            checks.append(Check(name, "note", "not installed", f"needed only for {purpose}"))
    return checks


def check_launcher() -> Check:
    """The deepspeed launcher of this environment, and no other one before it on PATH."""
    ours, first = Path(sys.executable).parent / "deepspeed", shutil.which("deepspeed")
    if not ours.exists():
        return Check(
            "launcher", "bad", "no deepspeed command beside python", "pip install deepspeed in this environment"
        )
    if first is None:
        return Check("launcher", "note", f"{ours} (not on PATH)", f"activate the environment: . {ours.parent}/activate")
    if Path(first).resolve() != ours.resolve():
        return Check("launcher", "note", f"`deepspeed` means {first}", f"it is another environment's; use {ours}")
    return Check("launcher", "ok", str(ours))


def check_hardware(hardware: Hardware, config: Path | None = None) -> list[Check]:
    """The device, and the JSON that suits it, of the same purpose as ``config``."""
    path, reason = choose_config(hardware, purpose_of(str(config)) if config else "")
    return [Check("device", "ok", hardware.describe()), Check("suits it", "ok", f"{path}: {reason}"), *check_idle_gpu()]


def check_idle_gpu(driver: Path = NVIDIA_DRIVER) -> list[Check]:
    """A GPU that this torch can't use: nothing else would say that a run falls back to the CPU."""
    import torch

    if not driver.exists() or torch.cuda.is_available() or os.environ.get("DS_ACCELERATOR") == "cpu":
        return []
    loaded = driver.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    if torch.version.cuda is None:
        advice = "make clean, then make TORCH_FLAGS='--index-url URL' with the URL that pytorch.org names for your CUDA"
        return [Check("gpu", "note", "there is one, and torch is a build for CPUs: runs take the CPU", advice)]
    advice = f"a driver for CUDA {torch.version.cuda} or newer; or CUDA_VISIBLE_DEVICES hides the GPU"
    return [Check("gpu", "note", f"there is one, and torch can't use it ({loaded}): runs take the CPU", advice)]


def check_launch(words: Sequence[str]) -> list[Check]:
    """What `minimind launch WORDS` would refuse, by the same code, and the port that a bare `deepspeed` takes."""
    try:
        options = launch_words.read_words([*words, __file__])  # in a script's place: one that is there
        active = launch_words.check(options)
    except UserError as error:
        return [Check("launch", "bad", str(error))]
    checks = [Check("launch", "ok", f"ranks on {', '.join(f'{h}: {len(slots)}' for h, slots in active.items())}")]
    default = launch_words.DEFAULT_PORT
    if options.master_port is None and (problem := port_problem(default)):
        advice = "`minimind launch` takes a free port by itself"
        checks.append(Check("port", "note", f"{problem} (`deepspeed` takes {default})", advice))
    return checks


def check_hosts(
    hostfile: Path, directory: Path, files: Sequence[Path], words: Sequence[str], show: Callable[[str], None]
) -> list[Check]:
    """The hosts side by side, and what is wrong with them. ``words``: the launcher's, of which two are about ports."""
    options = launch_words.read_words([*words, __file__])
    slots = read_hostfile(hostfile)
    port = options.master_port or launch_words.DEFAULT_PORT
    answers = survey.survey(slots, port, directory, files, survey.over_ssh(options.ssh_port))
    for line in survey.table(answers):
        show(line)
    verdicts = list(survey.judge(answers, slots, directory))
    found = [Check(v.what, "bad" if v.bad else "note", v.seen, v.advice) for v in verdicts]
    return found or [Check("hosts", "ok", f"{len(slots)} hosts agree")]


def compared_files(config: Path | None, deepspeed_config: Path | None, overrides: Sequence[str]) -> list[Path]:
    """What a run reads on every host: the YAML, the JSON, the tokenizer."""
    run = load_run_config(config, overrides)
    return [path for path in (config, deepspeed_config or run.deepspeed, run.tokenizer) if isinstance(path, Path)]


def check_compiler() -> Check:
    """DeepSpeedCPUAdam (offload) is compiled at first use, and what torch.compile makes for a GPU is linked by one."""
    if problem := compiler_problem():
        return Check("compiler", "note", problem[0], f"needed for *_offload.json and compile: {problem[1]}")
    return Check("compiler", "ok", str(shutil.which(os.environ.get("CXX", "c++"))))


def check_build_locks() -> list[Check]:
    """A build that was killed leaves a lock (build_lock.py). A run that needs the op removes or waits for it."""
    states = [(lock, found) for lock in builds.all_locks() if (found := build_lock.look_at(lock))]
    return [_build_lock(*state) for state in states] or [Check("build locks", "ok", "none")]


def _build_lock(lock: Path, found: build_lock.LockState) -> Check:
    if found.state == "held":
        return Check("build locks", "ok", f"{found.who} is compiling {lock.parent.name} ({lock})")
    if found.state == "dead":
        advice = f"a run that needs it removes it; any other software would wait for ever: rm {lock}"
        return Check("build locks", "note", f"stale, no process holds it: {lock}", advice)
    return Check("build locks", "note", f"{lock}: {found.who}", builds.advice(lock))


def check_disk(directory: Path, need: int = 2**31) -> Check:
    """Room for checkpoints: a 26M checkpoint takes about 0.4 GB."""
    existing = next(path for path in [directory, *directory.parents] if path.exists())
    free = shutil.disk_usage(existing).free
    seen = f"{free / 2**30:.1f} GiB free for {directory}"
    if free < need:
        return Check("disk", "bad", seen, "free some space, or set output_dir: checkpoints need about 2 GiB")
    return Check("disk", "ok", seen)


def check_resolved(resolved: Resolved, run: RunConfig, hardware: Hardware) -> list[Check]:
    """What a valid config needs from this machine, as the run itself asks."""
    resolved = without_missing_monitor(resolved)
    missing = [Check(lack.what, "bad", lack.reason, lack.advice) for lack in lacks(resolved, run, hardware)]
    found = [*resolved.findings, *remarks(resolved, hardware)]
    return missing + [Check(finding.code, "note", finding.message, finding.advice) for finding in found]


def check_config(
    path: Path | None,
    config: Path | None,
    overrides: Sequence[str],
    world_size: int,
    hardware: Hardware,
    strict: bool = False,
) -> list[Check]:
    """The config as a run would resolve it: its problems, or the batch explained and its findings."""
    if path is not None and not path.is_file():
        raise UserError(f"{path}: no such DeepSpeed config")
    try:
        run = load_run_config(config, overrides)
        resolved = resolve(chosen_source(path, run), run, world_size, hardware, run.emulate_fp16, strict=strict)
    except UserError as error:
        lines = [line.removeprefix("  - ") for line in str(error).split("\n")]
        return [Check("config", "bad", line) for line in (lines[1:] or lines)]
    offload = ", optimizer in CPU memory" if resolved.offload else ""
    kind = f"{resolved.precision}, ZeRO stage {resolved.stage}{offload}, {resolved.optimizer.type}"
    checks = [
        Check("config", "ok", f"{resolved.source}: {kind}, clipping {resolved.gradient_clipping:g}"),
        Check("batch", "ok", resolved.explain_batch(run.max_seq_length)),
    ]
    return checks + check_resolved(resolved, run, hardware)


def _ranks(num_gpus: int) -> list[str]:
    return ["--num_gpus", str(num_gpus)] if num_gpus > 1 else []


def run_doctor(
    deepspeed_config: Path | None = None,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    num_gpus: int = 1,
    output_dir: Path = Path("runs"),
    words: Sequence[str] = (),
    show: Callable[[str], None] = say,
    strict: bool = False,
    hostfile: Path | None = None,
) -> int:
    """Print every check; returns 1 if one is bad, else 0. ``words``: options of the launcher to check, too;
    ``hostfile``: its hosts are asked over ssh.

    Raises UserError if the config file or the hostfile does not exist.
    """
    if hostfile is not None:
        words = ["--hostfile", str(hostfile), *words]
    checks = [check_python(), *check_packages(), check_launcher()]
    if all(check.status != "bad" for check in checks):  # without torch there is nothing to detect
        hardware = detect()
        checks += [*check_hardware(hardware, deepspeed_config), *check_launch(words or _ranks(num_gpus))]
        checks += [check_compiler(), *check_build_locks(), check_disk(output_dir)]
        if deepspeed_config is not None or config is not None:
            checks += check_config(deepspeed_config, config, overrides, num_gpus, hardware, strict=strict)
    if hostfile is not None:
        files = compared_files(config, deepspeed_config, overrides)
        checks += check_hosts(hostfile, output_dir, files, words, show)
    for check in checks:
        advice = f"; {check.advice}" if check.advice else ""
        show(f"{check.status:<5}{check.name:<18}{check.seen}{advice}")
    bad = sum(check.status == "bad" for check in checks)
    show(f"{bad} problem{'s' if bad != 1 else ''}" if bad else "ready")
    if not bad:
        show(f"next: {next_line(hardware, deepspeed_config, config, hostfile)}")
    return 1 if bad else 0


def next_line(
    hardware: Hardware, deepspeed_config: Path | None = None, config: Path | None = None, hostfile: Path | None = None
) -> str:
    """The whole line to type next: these configs, or what suits this machine, on the built-in corpus. A CPU gets the
    tiny model, for the default one takes hours there."""
    json = deepspeed_config or (None if config else choose_config(hardware)[0])
    words: list[object] = ["--deepspeed_config", json] if json else []
    words += ["--config", config] if config else []
    kind = kind_by_name(str(json or config))
    small = ["--set", "model=tiny"] if hardware.device_type == "cpu" and kind == "pretrain" and not config else []
    output = ["--model", "runs/first", "--output-dir", "runs/sft"] if kind == "sft" else ["--output-dir", "runs/first"]
    hosts = ["--hostfile", hostfile] if hostfile else []
    return typed("minimind", "launch", *hosts, from_here(Path("launch") / f"{kind}.py"), *words, *small, *output)
