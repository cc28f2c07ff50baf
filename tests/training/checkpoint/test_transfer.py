"""Files from one rank to another without a network: what is sent is what arrives, and errors leave no one waiting."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from minimind.training.checkpoint import transfer
from minimind.training.checkpoint.directory import MANIFEST, directories
from minimind.training.checkpoint.snapshot import HostCopy, Snapshot
from minimind.training.checkpoint.transfer import PIECE, Inbox, outbox, send_directory
from tests.support import FakeEngine, save_steps

BIG = Snapshot({"engine/mp_rank_00_model_states.pt": HostCopy({"w": torch.arange(3_000_000)}), "zero_to_fp32.py": b""})


def sent(snapshot: Snapshot) -> list[bytes]:
    messages: list[bytes] = []
    with outbox(lambda data: messages.append(bytes(data))) as box:
        snapshot.send(box)
    return messages


def taken(messages: list[bytes], directory: Path) -> Inbox:
    left: Iterator[bytes] = iter(messages)
    box = Inbox(directory)
    box.receive(lambda: next(left))
    assert next(left, None) is None, "the receiver left something unread"
    return box


@pytest.mark.parametrize("snapshot", [FakeEngine().snapshot({"step": 3}), BIG])
def test_what_arrives_is_byte_for_byte_what_would_have_been_written(snapshot: Snapshot, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    messages = sent(snapshot)
    assert max(map(len, messages)) <= 2 * PIECE, "held at once on both sides"
    assert taken(messages, there).facts == snapshot.write(here)
    for name in snapshot.files:
        assert (there / name).read_bytes() == (here / name).read_bytes()
        assert (there / name).stat().st_mode == (here / name).stat().st_mode


def test_a_directory_arrives_as_it_is(tmp_path: Path) -> None:
    save_steps(tmp_path, 5)
    checkpoint = directories(tmp_path, 5)[1]
    names = [p.relative_to(checkpoint).as_posix() for p in checkpoint.rglob("*") if p.is_file() and p.name != MANIFEST]
    messages: list[bytes] = []
    send_directory(checkpoint, names, lambda data: messages.append(bytes(data)))
    assert set(taken(messages, tmp_path / "there").facts) == set(names)
    assert all((tmp_path / "there" / name).read_bytes() == (checkpoint / name).read_bytes() for name in names)


def test_a_receiver_that_can_not_write_takes_all_and_has_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(transfer, "create", full)
    box = taken(sent(BIG), tmp_path)
    assert isinstance(box.error, OSError) and box.error.errno == errno.ENOSPC and box.facts == {}


def test_a_damaged_file_and_a_strange_name_are_refused(tmp_path: Path) -> None:
    messages = sent(BIG)
    messages[1] = messages[1][:100] + b"?" + messages[1][101:]
    box = taken(messages, tmp_path / "a")
    assert "arrived damaged" in str(box.error) and "engine/mp_rank_00_model_states.pt" not in box.facts
    for name in ("../../evil.py", "/etc/passwd", "engine/evil.pt", "engine/../../x.pt"):
        box = taken([b"n" + name.encode(), b"p", b"e", b"."], tmp_path / "b")
        assert "no name of a checkpoint's file" in str(box.error) and box.facts == {}
    assert not (tmp_path / "b").exists()


def test_a_sender_that_fails_says_so(tmp_path: Path) -> None:
    messages: list[bytes] = []

    def fail() -> None:
        with outbox(lambda data: messages.append(bytes(data))) as box:
            box.begin("zero_to_fp32.py")
            box.write(b"half")
            raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        fail()
    assert messages[-1] == b"!"
    box_there = taken(messages, tmp_path)
    assert box_there.facts == {} and box_there.error is None  # the sender has it, and all ranks hear of it
