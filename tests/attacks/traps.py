"""Links that a stranger leaves where this program reads, writes or deletes, and what must be true afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SECRET = "ssh-rsa-the-readers-own-key"


@dataclass(frozen=True)
class Victim:
    """A file and a directory of the user's, beside what the stranger handed over."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> Victim:
        victim = cls(root)
        victim.directory.mkdir(parents=True)
        victim.file.write_text(SECRET)
        (victim.directory / "thesis.txt").write_text(SECRET)
        return victim

    @property
    def file(self) -> Path:
        return self.root / "id_rsa"

    @property
    def directory(self) -> Path:
        return self.root / "home"

    def plant(self, directory: Path, files: Iterable[str] = (), directories: Iterable[str] = ()) -> None:
        """Put links in the places of ``files`` and ``directories``, whatever stands there."""
        for names, target in ((files, self.file), (directories, self.directory)):
            for name in names:
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir() and not path.is_symlink():
                    path.rename(path.with_name(f"was-{path.name}"))
                path.unlink(missing_ok=True)
                path.symlink_to(target)

    def assert_unharmed(self, *places: Path, said: str = "") -> None:
        """Nothing of the victim's was changed, added or deleted, said, or copied into a file below ``places``."""
        assert self.file.read_text() == SECRET
        assert [path.name for path in self.directory.iterdir()] == ["thesis.txt"]
        assert (self.directory / "thesis.txt").read_text() == SECRET
        assert SECRET not in said
        for place in places:
            for parent, _, names in os.walk(place):
                for path in (Path(parent, name) for name in names):
                    assert path.is_symlink() or SECRET.encode() not in path.read_bytes(), path
