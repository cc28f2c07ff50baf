"""minimind.data.store.store: what is written is read, finished or absent, damage is named."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimind.base.errors import UserError
from minimind.data.store import store as module
from minimind.data.store.store import StoreWriter, TokenStore

SOURCES = {"sources": ["a.jsonl", {"path": "b.jsonl", "sha256": "0"}]}
Document = tuple[list[int], list[bool]]
documents = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=2, max_size=30), min_size=1, max_size=12
)


def write(path: Path, count: int = 5, kind: module.Kind = "pretrain") -> Path:
    writer = StoreWriter(path, 100, kind)
    for i in range(count):
        tokens = [1, *range(10, 10 + i), 2]
        writer.add(tokens, [False] + [True] * (i + 1) if kind == "sft" else None, i % 2, 10 + i, 3 * i)
    return writer.finish(SOURCES)


@settings(max_examples=40, deadline=None)
@given(documents, st.integers(1, 20))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, content: list[list[tuple[int, bool]]], flush_at: int
) -> None:
    path = tmp_path_factory.mktemp("s") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FLUSH_TOKENS", flush_at)
        writer = StoreWriter(path, 100, "sft")
        for i, document in enumerate(content):
            writer.add([t for t, _ in document], [flag for _, flag in document], i % 2, i + 1, 7 * i)
        assert writer.finish(SOURCES) == path
    store = TokenStore.open(path)
    assert len(store) == len(content)
    assert store.lengths.tolist() == [len(document) for document in content]
    for i, document in enumerate(content):
        flags = store.trainable(i)
        assert flags is not None
        assert list(zip(store.document(i).tolist(), flags.tolist(), strict=True)) == document
        assert store.source(i) == (("a.jsonl", "b.jsonl")[i % 2], i + 1)
        assert store.document_bytes[i] == 7 * i
    assert store.num_tokens == sum(map(len, content))
    assert store.num_trainable == sum(flag for document in content for _, flag in document)
    assert store.num_bytes == sum(7 * i for i in range(len(content)))


def test_pretraining_store(tmp_path: Path) -> None:
    store = TokenStore.open(write(tmp_path / "new" / "store"))
    assert store.kind == "pretrain"
    assert store.trainable(0) is None
    assert store.num_trainable == store.num_predictions == store.num_tokens - 5
    assert store.document(2).tolist() == [1, 10, 11, 2]
    assert not (store.path / "trainable.bin").exists()
    with pytest.raises(IndexError):
        store.document(5)
    with pytest.raises(IndexError):
        store.source(-1)
    with pytest.raises(ValueError, match="read-only"):
        store.document(2)[0] = 0


@pytest.mark.parametrize(("vocab_size", "itemsize"), [(65536, 2), (65537, 4)])
def test_token_width_follows_the_vocabulary(tmp_path: Path, vocab_size: int, itemsize: int) -> None:
    writer = StoreWriter(tmp_path / "store", vocab_size)
    writer.add(np.array([1, vocab_size - 1]), None, 0, 1, 1)
    store = TokenStore.open(writer.finish(SOURCES))
    assert store.document(0).tolist() == [1, vocab_size - 1]
    assert store.tokens.itemsize == itemsize


@pytest.mark.parametrize("bad", [[1, 100], [-1, 2], np.array([1, 65537])])
def test_ids_outside_the_vocabulary_never_wrap_around(tmp_path: Path, bad: list[int]) -> None:
    writer = StoreWriter(tmp_path / "store", 100)
    writer.add(bad, None, 0, 1, 1)
    with pytest.raises(ValueError, match="vocabulary of 100"):
        writer.finish(SOURCES)
    writer.abort()


def test_wrong_documents_are_refused(tmp_path: Path) -> None:
    pretrain, sft = StoreWriter(tmp_path / "p", 100), StoreWriter(tmp_path / "s", 100, "sft")
    for writer, tokens, flags in (
        (pretrain, [1], None),
        (pretrain, [1, 2], [True, True]),
        (sft, [1, 2], None),
        (sft, [1, 2], [True]),
    ):
        with pytest.raises(ValueError, match="document"):
            writer.add(tokens, flags, 0, 1, 1)
    pretrain.abort()
    sft.abort()
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_store(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no document"):
        StoreWriter(tmp_path / "store", 100).finish(SOURCES)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_is_absent(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", 100)
    writer.add([1, 2], None, 0, 1, 1)
    with pytest.raises(UserError, match="no token store"):
        TokenStore.open(tmp_path / "store")
    writer.abort()
    assert list(tmp_path.iterdir()) == []


WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from minimind.data.store.store import StoreWriter
real, left = os.fsync, int(sys.argv[2])
def fsync(descriptor):
    global left
    real(descriptor)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
writer = StoreWriter(Path(sys.argv[1]), 100)
writer.add([1, 5, 2], None, 0, 1, 1)
writer.finish({"sources": ["a.jsonl"]})
"""


@pytest.mark.parametrize(("after", "complete"), [(1, False), (6, False), (7, False), (8, True)])
def test_killed_at_any_moment_it_is_finished_or_absent(tmp_path: Path, after: int, complete: bool) -> None:
    """The moments are the syncs: 5 arrays, the manifest, the directory, and after the rename the parent."""
    path = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path), str(after)], check=False)
    assert done.returncode == -signal.SIGKILL
    if complete:
        assert TokenStore.open(path).document(0).tolist() == [1, 5, 2]
        return
    with pytest.raises(UserError, match="no token store"):
        TokenStore.open(path)
    assert len(list(tmp_path.iterdir())) == 1  # the hidden debris
    write(path)
    assert list(tmp_path.iterdir()) == [path]


def test_debris_of_a_living_process_stays(tmp_path: Path) -> None:
    other = tmp_path / f"{module._building_prefix(tmp_path / 'store')}{os.getppid()}-00"
    other.mkdir()
    write(tmp_path / "store")
    assert other.exists()


def test_two_writers_do_not_collide(tmp_path: Path) -> None:
    first, second = (StoreWriter(tmp_path / "store", 100) for _ in range(2))
    for writer, last in ((first, 7), (second, 8)):
        writer.add([1, last], None, 0, 1, 1)
    first.finish(SOURCES)
    assert second.finish(SOURCES) == tmp_path / "store"
    assert TokenStore.open(tmp_path / "store").document(0).tolist() == [1, 7]
    assert list(tmp_path.iterdir()) == [tmp_path / "store"]


def test_a_directory_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "store")
    assert [p.name for p in tmp_path.rglob("*")] == ["store", "thesis.txt"]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 4,096 bytes: the kernel refuses as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("flush_at", [1000, 1 << 20])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, flush_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FLUSH_TOKENS", flush_at)
    writer = StoreWriter(tmp_path / "store", 100)

    def fill_up() -> None:
        for line in range(100):
            writer.add([1] * 100, None, 0, line, 1)
        writer.finish(SOURCES)

    with pytest.raises(UserError, match=r"store: cannot be written: .*free space"):
        fill_up()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        StoreWriter(tmp_path / "file" / "store", 100)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy", "trainable.bin", "source_line.npy", "bytes.npy"])
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "store", kind="sft")
    file = path / name
    size = file.stat().st_size
    for damaged in (size - 1, size + 1):
        os.truncate(file, damaged)
        with pytest.raises(UserError, match=rf"{name} has \d+ bytes, the manifest says \d+; .*prepare it again"):
            TokenStore.open(path)
    file.unlink()
    with pytest.raises(UserError, match=rf"{name}: No such file"):
        TokenStore.open(path)


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"version": 1}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, manifest: str) -> None:
    path = write(tmp_path / "store")
    (path / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        TokenStore.open(path)


def test_another_format_version(tmp_path: Path) -> None:
    path = write(tmp_path / "store")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(UserError, match="format version 99, this program reads 1"):
        TokenStore.open(path)


def test_a_store_can_be_moved(tmp_path: Path) -> None:
    shutil.move(write(tmp_path / "store"), tmp_path / "elsewhere")
    assert TokenStore.open(str(tmp_path / "elsewhere")).source(1) == ("b.jsonl", 11)


@pytest.mark.parametrize("kind", ["pretrain", "sft"])
def test_a_store_knows_what_its_writer_was_told(kind: module.Kind, tmp_path: Path) -> None:
    store = TokenStore.open(write(tmp_path / "store", 4, kind))
    assert (store.path, store.kind, store.vocab_size) == (tmp_path / "store", kind, 100)
    assert (len(store), store.num_tokens, store.num_bytes) == (4, 2 + 3 + 4 + 5, 3 * (0 + 1 + 2 + 3))
    assert store.num_trainable == 1 + 2 + 3 + 4
    assert store.tokens.dtype == np.uint16 and (store.trainable_mask is not None) == (kind == "sft")
