"""What this machine computes in natively, and the shipped JSON that suits it.

``Hardware`` is a plain value, so that every decision taken from it is testable without the hardware; only ``detect``
looks at the machine (and imports torch). "Native" means at full speed: a CPU without AVX512-BF16 or AMX runs bf16
correctly but slower than fp32 (measured on an Ice Lake Xeon: 60 against 100 GFLOP/s), and a GPU before Ampere emulates
it. Weakness: only CUDA devices and CPUs are told apart; other accelerators count as CPUs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from minimind.base.cpu import cpu_name
from minimind.base.shipped import CONFIG_DIRECTORY, from_here


@dataclass(frozen=True)
class Hardware:
    """One machine as training sees it; ``memory`` is bytes of one device (GPU) or of the machine (CPU)."""

    device_type: str  # "cuda" | "cpu"
    fp16: bool
    bf16: bool
    name: str = ""
    memory: int | None = None
    count: int = 1

    def describe(self) -> str:
        """One line for headers and ``minimind doctor``."""
        size = f", {self.memory / 2**30:.1f} GiB" if self.memory else ""
        native = ", ".join(kind for kind, has in (("bf16", self.bf16), ("fp16", self.fp16)) if has) or "fp32 only"
        return f"{self.count} x {self.name or self.device_type}{size} (native: {native})"


def detect() -> Hardware:
    """The hardware that DeepSpeed will use in this process: a visible CUDA GPU (unless DS_ACCELERATOR says
    cpu), else the CPU.
    """
    import torch

    from minimind.base.processor import cpu_has_fast, cpu_runs_fp16

    if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") != "cpu":  # gpu
        device = torch.cuda.get_device_properties(0)
        return Hardware(
            device_type="cuda",
            fp16=True,
            # including_emulation=False: a Turing card would say yes and be slow
            bf16=torch.cuda.is_bf16_supported(including_emulation=False),
            name=device.name,
            memory=device.total_memory,
            count=torch.cuda.device_count(),
        )
    return Hardware(
        device_type="cpu",
        fp16=cpu_runs_fp16(),
        bf16=cpu_has_fast(torch.bfloat16),
        name=cpu_name(),
        memory=memory_bytes(),
    )


def memory_bytes() -> int | None:
    """Memory that this process may use: the machine's, or the container's limit if smaller; None where unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit_file).read_text()))
        except (OSError, ValueError):  # no cgroup, or "max"
            continue
    return total


def best_precision(hardware: Hardware) -> str:
    """``bf16`` where native, else ``fp16`` where native, else ``fp32``."""
    return "bf16" if hardware.bf16 else "fp16" if hardware.fp16 else "fp32"


def purpose_of(source: str, kind: str = "pretrain") -> str:
    """What a JSON is for, as the shipped ones' names begin: "demo_", "sft_", or "" for pretraining.

    ``kind``: what it is used for, "pretrain" or "sft", which a user's own JSON does not tell by its name.
    """
    if Path(source).name.startswith("demo_"):
        return "demo_"
    return "sft_" if kind == "sft" or kind_by_name(source) == "sft" else ""


def kind_by_name(source: str) -> str:
    """ "sft" for a JSON with a name like the shipped ones for fine-tuning, else "pretrain"."""
    return "sft" if Path(source).name.startswith("sft_") else "pretrain"


def shipped_config(source: str, kind: str, name: str) -> Path | None:
    """The shipped JSON for ``name`` ("bf16", "fp16_zero2" ...) of the purpose that ``source`` has; None: there is none.

    The path is one that exists from the current directory: beside ``source``, or where the shipped ones are.
    """
    file = f"{purpose_of(source, kind)}{name}.json"
    places = (Path(source).parent / file, from_here(CONFIG_DIRECTORY / file))
    return next((path for path in places if path.is_file()), None)


def advised_config(source: str, kind: str, precision: str) -> str:
    """The JSON to name in advice: of the same purpose as ``source``, in ``precision``."""
    path = shipped_config(source, kind, precision)
    return str(path or from_here(CONFIG_DIRECTORY / f"{purpose_of(source, kind)}{precision}.json"))


def choose_config(hardware: Hardware | None = None, prefix: str = "") -> tuple[Path, str]:
    """The shipped JSON for ``hardware`` (default: this machine) and the reason, for ``make demo`` and error
    messages. ``prefix``: "sft_" or "demo_" for the JSONs of that name. The path exists from the current directory.
    """
    hardware = hardware or detect()
    precision = best_precision(hardware)
    reasons = {
        ("cuda", "bf16"): "the GPU computes bf16 natively (Ampere or newer): fp32's range, no loss scale to watch",
        ("cuda", "fp16"): "the GPU has fp16 tensor cores but only emulates bf16 (older than Ampere)",
        ("cpu", "bf16"): "the CPU has AVX512-BF16, AMX or Arm bf16 instructions",
        ("cpu", "fp16"): "the CPU has AVX512-FP16 instructions but none for bf16",
        ("cpu", "fp32"): "the CPU multiplies neither bf16 nor fp16 natively: fp32 is the fastest precision on it",
    }
    path = from_here(CONFIG_DIRECTORY / f"{prefix}{precision}.json")
    return path, reasons[hardware.device_type, precision]
