"""The devices that DeepSpeed's launcher counts on this machine, without importing torch or DeepSpeed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# What DS_ACCELERATOR may say (accelerator/real_accelerator.py ``SUPPORTED_ACCELERATOR_LIST``)
ACCELERATORS = ("cuda", "cpu", "xpu", "npu", "mps", "hpu", "mlu", "sdaa", "supa", "klxpu")
DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA, WSL, AMD
COUNT = "import torch; print(torch.cuda.device_count())"


def count_devices() -> tuple[str, int] | None:
    """The kind ("cuda" or "cpu") and number of devices; None where only DeepSpeed itself knows.

    CUDA_VISIBLE_DEVICES is left out, as the launcher does. Asking for GPUs takes a process that imports torch.
    """
    asked = os.environ.get("DS_ACCELERATOR")
    if asked not in (None, "cpu", "cuda"):
        return None
    if asked == "cuda" or (asked is None and any(Path(path).exists() for path in DRIVERS)):
        gpus = _count_gpus()
        if gpus is None or gpus > 0 or asked == "cuda":
            return None if gpus is None else ("cuda", gpus)
    return "cpu", _count_cpus()


def _count_gpus() -> int | None:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    result = subprocess.run([sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=False)
    return int(result.stdout) if result.returncode == 0 else None


def _count_cpus() -> int:
    """``LOCAL_SIZE``, or the NUMA nodes that have cores, or one (accelerator/cpu_accelerator.py ``device_count``)."""
    size = os.environ.get("LOCAL_SIZE", "")
    if size.isdigit() and int(size):
        return int(size)
    if shutil.which("numactl") is None:
        return 1
    text = subprocess.run(["numactl", "--hardware"], capture_output=True, text=True, check=False).stdout
    cores = [
        line.partition(":")[2].split() for line in text.splitlines() if line.startswith("node ") and " cpus:" in line
    ]
    distinct = [own for own, before in zip(cores, [[], *cores], strict=False) if own and own != before]
    return len(distinct) or 1


def physical_cores() -> int:
    """Cores, of which each may be several processors to the kernel; counted as psutil does, which the launcher asks."""
    siblings = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/core_cpus_list")
    return len({path.read_text() for path in siblings}) or os.cpu_count() or 1
