"""The DeepSpeed JSON: read, lint, fill "auto", solve the batch triple, explain. ``resolve`` is the way in.

``source`` reads the file with line numbers, ``schema`` lists every known key, ``lint`` checks names and types,
``refusals`` holds what this trainer does not run and why; ``precision``, ``zero``, ``batch``, ``optimizer`` and
``scheduler`` each own their part, and ``resolve`` puts them together. Nothing here imports torch or deepspeed.
"""

from minimind.base.findings import Finding
from minimind.base.hardware import Hardware
from minimind.config.deepspeed.optimizer import OptimizerSpec
from minimind.config.deepspeed.resolve import Resolved, resolve

__all__ = ["Finding", "Hardware", "OptimizerSpec", "Resolved", "resolve"]
