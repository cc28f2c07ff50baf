"""MiniMind on DeepSpeed: raw Chinese and English text in, a chatting GPT out.

Three names are public: `load` a trained model, `train` one in this process, `read` files as the trainer does (api.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minimind.api import load as load
    from minimind.api import read as read
    from minimind.api import train as train

__version__ = "0.1.0"
__all__ = ["load", "read", "train"]


def __getattr__(name: str) -> Any:
    """The public names, looked up at their first use, so that `import minimind` is cheap."""
    if name in __all__:
        return getattr(importlib.import_module("minimind.api"), name)
    raise AttributeError(f"module 'minimind' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
