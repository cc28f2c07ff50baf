"""Files whole or not at all, and where they are said to be."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from minimind.base import files as durable
from minimind.base.files import (
    append_to,
    create,
    directory_inside,
    free_name,
    lock_file,
    open_inside,
    path_inside,
    read_inside,
    read_named,
    replacing,
    subdirectory,
    write_durably,
)


def test_a_file_is_replaced_and_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    write_durably(tmp_path / "link", "new")
    assert (victim.read_text(), (tmp_path / "link").read_text()) == ("mine", "new")
    write_durably(tmp_path / "link", "newer", mode=0o600)
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "link"}


def test_a_failed_block_leaves_the_old_file_alone(tmp_path: Path) -> None:
    write_durably(tmp_path / "a", "old")
    with contextlib.suppress(KeyboardInterrupt), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert (tmp_path / "a").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from minimind.base.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_with_a_later_write_and_a_living_ones_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "a")], check=False)
    assert done.returncode == -signal.SIGKILL
    (debris,) = tmp_path.iterdir()
    write_durably(tmp_path / "b", "")
    assert debris.exists()  # made a moment ago: perhaps by one who is about to lock it
    os.utime(debris, (1, 1))
    (tmp_path / ".minimind-notes.tmp").write_text("mine")
    with replacing(tmp_path / "c") as living:
        os.utime(living.name, (1, 1))
        write_durably(tmp_path / "d", "")
    assert {path.name for path in tmp_path.iterdir()} == {"b", "c", "d", ".minimind-notes.tmp"}


def test_new_files_are_new(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("link", "there"):
        (tmp_path / "there").touch()
        with pytest.raises(FileExistsError):
            create(tmp_path / name)
    for opened in (append_to, lock_file):
        with pytest.raises(OSError, match="a symbolic link, which is not followed"):
            opened(tmp_path / "link")
        opened(tmp_path / "new").close()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"no regular file|No such device"):
        append_to(tmp_path / "pipe")
    assert not (tmp_path / "nowhere").exists()


def test_what_lies_inside_is_read(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    inside = tmp_path / "inside"
    (inside / "below").mkdir(parents=True)
    (inside / "below" / "a").write_text("a")
    (inside / "b").symlink_to(Path("below") / "a")
    (inside / "c").symlink_to("b")
    (inside / "again").symlink_to("below")
    (tmp_path / "named").symlink_to(inside)
    for name in ("below/a", "b", "c", "again/a"):
        assert read_inside(inside, name) == b"a"
        assert read_inside(tmp_path / "named", name) == b"a"
        assert path_inside(inside, name) == inside.resolve() / "below" / "a"
    assert directory_inside(inside, "again") == inside / "again"


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("../outside", "leads out of"),
        ("/etc/hostname", "leads out of"),
        ("nowhere", "No such file"),
        ("link", "symbolic link|symlink"),
        (".", "leads out of"),
        ("below", "no regular file"),
        ("/dev/zero", "leads out of"),
        ("/proc/self/environ", "leads out of"),
        ("pipe", "no regular file"),
        ("../inside2/a", "leads out of"),
    ],
)
def test_what_a_link_leads_out_to_is_not_read(target: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    inside, beside = tmp_path / "inside", tmp_path / "inside2"
    for place in (inside, inside / "below", beside):
        place.mkdir()
    (beside / "a").write_text("mine")
    os.mkfifo(inside / "pipe")
    (inside / "link").symlink_to(target)
    with pytest.raises(OSError, match=why) as error:
        open_inside(inside, "link")
    assert error.value.filename == str(inside / "link") and error.value.strerror


def test_a_link_on_the_way_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_text("mine")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "below").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="leads out of"):
        open_inside(tmp_path / "inside", "below/a")
    with pytest.raises(OSError, match="leads out of"):
        directory_inside(tmp_path / "inside", "below")
    with pytest.raises(NotADirectoryError, match="a symbolic link"):
        subdirectory(tmp_path / "inside", "below", "new")
    for name in ("../outside/a", "/etc/hostname", "", "."):
        with pytest.raises(OSError, match="names no file in"):
            open_inside(tmp_path / "inside", name)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (lambda: read_inside(tmp_path, "pipe"), lambda: read_named(tmp_path / "pipe")):
        with pytest.raises(OSError, match="no regular file") as error:
            read()
        assert error.value.errno == errno.EINVAL


def test_a_named_file_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_named(tmp_path / "link") == b"a"


def test_subdirectories_are_made_by_several_at_once(tmp_path: Path) -> None:
    threads = [threading.Thread(target=subdirectory, args=(tmp_path / "new", "a", "b")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "new" / "a" / "b").is_dir()


def test_a_dangling_link_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "earlier-1").symlink_to(tmp_path / "nowhere")
    assert free_name(tmp_path / "x", lambda n: f"earlier-{n}") == tmp_path / "earlier-2"
    assert durable.is_directory(tmp_path) and not durable.is_directory(tmp_path / "earlier-1")


def test_content_is_synced_then_named_then_the_name_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest"
    events: list[tuple[Any, ...]] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        events.append(("sync", status.st_ino, None if stat.S_ISDIR(status.st_mode) else status.st_size))
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> None:
        events.append(("name", source.stat().st_ino, target))
        replace(source, target)

    path.write_text("old")
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_durably(path, "new 山")
    inode, directory = path.stat().st_ino, tmp_path.stat().st_ino
    assert events == [("sync", inode, 7), ("name", inode, path), ("sync", directory, None)]
    assert path.read_text(encoding="utf-8") == "new 山"
    assert [entry.name for entry in tmp_path.iterdir()] == ["latest"]


def test_a_failure_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, "new")
    assert path.read_text() == "old"


def test_a_file_that_a_library_puts_in_its_place_has_the_usual_mode(tmp_path: Path) -> None:
    """safetensors 0.8 writes a file of its own, for its owner alone, and renames it over the name that it was given."""
    before = os.umask(0o022)
    try:
        with replacing(tmp_path / "weights") as file:
            own = tmp_path / "own"
            own.touch(0o600)
            own.write_bytes(b"theirs")
            os.replace(own, file.name)
    finally:
        os.umask(before)
    assert (tmp_path / "weights").read_bytes() == b"theirs"
    assert stat.S_IMODE((tmp_path / "weights").stat().st_mode) == 0o644
