"""The files that come with the code: launch scripts, DeepSpeed JSONs, run configurations.

Contract. A shipped file has one name, that in the checkout ("launch/pretrain.py"), and ``shipped`` finds it from
anywhere: in the checkout that this package runs from, or in the copy that a wheel installs inside the package
(setup.py). What is printed to be typed goes through ``from_here``.

Known weakness: a zipped package has no paths that the launcher could run.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = PACKAGE / "shipped"  # only a wheel has it: setup.py names it
CONFIG_DIRECTORY = Path("ds_configs")


def home() -> Path:
    """The directory that holds ``launch``, ``ds_configs`` and ``configs``."""
    return INSTALLED if INSTALLED.is_dir() else PACKAGE.parent


def shipped(name: Path | str) -> Path:
    """The whole path of a shipped file or folder, whether it is there or not."""
    return home() / name


def from_here(name: Path | str) -> Path:
    """The same as one would type it: as short as the README writes it where that names this file, else whole."""
    whole = shipped(name)
    short = Path(name)
    return short if short.exists() and whole.exists() and short.samefile(whole) else whole
