"""A cache that others can reach: private, of one owner, and with what was put there."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from minimind.base.errors import UserError
from minimind.corpus.corpus import kept_demo, kept_demo_tokenizer
from minimind.data.store import files as store_files
from minimind.data.store import rooms
from minimind.data.store.prepare import prepare
from minimind.data.store.store import StoreWriter, TokenStore
from minimind.text.tokenizer import Tokenizer

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
SOMEBODY = 12345


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "new" / "cache"))
    return tmp_path / "new" / "cache"


@pytest.fixture
def tokenizer(files: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(files["tokenizer"])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def exchange(file: Path) -> None:
    """Other content of the same size, under the same times."""
    status, content = file.stat(), bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_cache_and_its_rooms_are_private(cache: Path, files: dict[str, Path], tokenizer: Tokenizer) -> None:
    before = os.umask(0)
    try:
        prepare([files["pretrain"]], tokenizer)
    finally:
        os.umask(before)
    assert [mode(path) for path in (cache, *cache.iterdir())] == [0o700] * (1 + len(list(cache.iterdir())))
    for path in (cache, cache / "stores"):
        path.chmod(0o777)
    prepare([files["pretrain"]], tokenizer)
    assert (mode(cache), mode(cache / "stores")) == (0o700, 0o700)


def test_a_directory_that_holds_other_things_keeps_its_mode(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "thesis").mkdir()
    cache.chmod(0o755)
    assert mode(rooms.room(cache, "stores")) == 0o700
    assert mode(cache) == 0o755
    cache.chmod(0o777)
    with pytest.raises(UserError, match="all can write to it"):
        rooms.room(cache, "stores")
    cache.chmod(0o1777)  # as /tmp: only the owner of a name can take it away
    rooms.room(cache, "stores")


@AS_ROOT
@pytest.mark.parametrize("what", ["store", "file", "room", "cache", "planted"])
def test_what_belongs_to_another_user_is_refused(
    what: str, cache: Path, files: dict[str, Path], tokenizer: Tokenizer
) -> None:
    store = prepare([files["pretrain"]], tokenizer)
    place = {
        "store": store,
        "file": store / "tokens.bin",
        "room": store.parent,
        "cache": cache,
        "planted": cache.parent,
    }[what]
    os.chown(place, SOMEBODY, SOMEBODY)
    if what == "planted":  # a directory of theirs where all can write
        cache.parent.parent.chmod(0o1777)
    with pytest.raises(UserError, match=f"{place}: (belongs to another user|others can exchange it)") as error:
        prepare([files["pretrain"]], tokenizer)
    assert "\n" not in str(error.value)


def test_an_owner_is_who_runs_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms.require_owner(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    with pytest.raises(UserError, match=rf"belongs to another user \(uid {os.getuid()}\)"):
        rooms.require_owner(tmp_path)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy", "source_line.npy", "bytes.npy"])
def test_an_exchanged_file_of_the_same_size_is_seen(
    name: str, cache: Path, files: dict[str, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "_SETTLED_SECONDS", -1.0)  # remember at once
    store = prepare([files["pretrain"]], tokenizer)
    first = TokenStore.open(store).tokens.tolist()
    assert list((cache / "verified").iterdir())
    exchange(store / name)
    with pytest.raises(UserError, match=f"{name}: is not what was prepared"):
        TokenStore.open(store)
    said: list[str] = []
    assert prepare([files["pretrain"]], tokenizer, say=said.append) == store
    assert said[0].startswith("made again: ") and name in said[0]
    assert TokenStore.open(store).tokens.tolist() == first


def test_a_store_is_read_once_and_then_only_looked_at(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StoreWriter(tmp_path / "store", 100)
    writer.add([1, 5, 2], None, 0, 1, 1)
    store = writer.finish({"sources": ["a"]})
    read: list[Path] = []
    original = store_files._verify
    monkeypatch.setattr(store_files, "_verify", lambda path, *rest: read.append(path) or original(path, *rest))
    TokenStore.open(store)
    TokenStore.open(store)
    assert len(read) == 2  # it could change once more within this tick of the clock
    monkeypatch.setattr(store_files, "_SETTLED_SECONDS", -1.0)
    for _ in range(3):
        TokenStore.open(store)
    assert len(read) == 3
    store.rename(tmp_path / "moved")
    TokenStore.open(tmp_path / "moved")
    assert len(read) == 3
    os.utime(tmp_path / "moved" / "tokens.bin")
    TokenStore.open(tmp_path / "moved")
    assert len(read) == 4


def test_without_a_cache_a_store_is_verified_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "file" / "cache"))
    writer = StoreWriter(tmp_path / "store", 100)
    writer.add([1, 5, 2], None, 0, 1, 1)
    store = writer.finish({"sources": ["a"]})
    assert len(TokenStore.open(store)) == 1
    exchange(store / "tokens.bin")
    with pytest.raises(UserError, match="SHA-256 differs"):
        TokenStore.open(store)


def test_a_store_of_before_the_hashes(cache: Path, files: dict[str, Path], tokenizer: Tokenizer) -> None:
    """In the cache it is made again; one that was named is verified by its numbers."""
    store = prepare([files["pretrain"]], tokenizer)
    manifest = json.loads((store / "manifest.json").read_text())
    del manifest["sha256"]
    (store / "manifest.json").write_text(json.dumps(manifest))
    assert len(TokenStore.open(store)) == 120
    said: list[str] = []
    prepare([files["pretrain"]], tokenizer, say=said.append)
    assert "made again" in said[0] and "hashes" in said[0]
    assert "sha256" in TokenStore.open(store).manifest


BAD = {
    "tokens.bin": (lambda values: values.__setitem__(3, 100), np.uint16, 0),
    "offsets.npy": (lambda values: values.__setitem__(1, 10**9), np.int64, 128),
    "source_file.npy": (lambda values: values.__setitem__(0, -1), np.int32, 128),
    "bytes.npy": (lambda values: values.__setitem__(0, 77), np.int32, 128),
    "trainable.bin": (lambda values: values.__setitem__(0, 7), np.uint8, 0),
}


@pytest.mark.parametrize("name", BAD)
def test_numbers_that_lead_out_of_an_array_are_named(name: str, tmp_path: Path, cache: Path) -> None:
    """A crafted store may have no hashes, or the right ones."""
    writer = StoreWriter(tmp_path / "store", 100, "sft")
    for line in range(3):
        writer.add([1, 5, 2], [False, True, True], 0, line, 1)
    store = writer.finish({"sources": ["a"]})
    change, dtype, start = BAD[name]
    content = bytearray((store / name).read_bytes())
    values = np.frombuffer(content, dtype, offset=start)
    change(values)
    (store / name).write_bytes(content)
    manifest = json.loads((store / "manifest.json").read_text())
    del manifest["sha256"]
    (store / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=f"{name}: holds numbers that no store holds"):
        TokenStore.open(store)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../x": 1}},
        {"kind": 3},
        {"tokens": "9"},
        {"documents": -1},
        {"sources": None},
        {"vocab_size": 1e9},
        {"files": {"tokens.bin": "6"}},
    ],
)
def test_a_crafted_manifest_is_damaged(change: dict[str, object], tmp_path: Path, cache: Path) -> None:
    writer = StoreWriter(tmp_path / "store", 100)
    writer.add([1, 5, 2], None, 0, 1, 1)
    store = writer.finish({"sources": ["a"]})
    manifest = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        TokenStore.open(store)


def test_the_built_in_corpus_is_made_again_where_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minimind.corpus import corpus as demo

    original, written = demo.write_demo, []

    def small(directory: Path) -> None:
        written.append(directory)
        original(directory, num_pretrain=400, num_sft=100, num_eval=3, num_sft_eval=3)

    monkeypatch.setattr(demo, "write_demo", small)
    files = kept_demo(tmp_path)
    content = files.pretrain.read_bytes()
    exchange(files.pretrain)
    assert kept_demo(tmp_path).pretrain.read_bytes() == content and len(written) == 2
    monkeypatch.setattr(demo, "VOCABULARY", 600)
    model = kept_demo_tokenizer(files, tmp_path) / "tokenizer.model"
    made = model.stat().st_mtime_ns, model.read_bytes()
    assert kept_demo_tokenizer(files, tmp_path) and model.stat().st_mtime_ns == made[0]
    model.write_bytes(made[1] + b" ")
    assert kept_demo_tokenizer(files, tmp_path) and model.read_bytes() == made[1]


def test_a_remembered_hash_that_is_none_is_not_believed(cache: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = tmp_path / "a.txt"
    text.write_text("The sea is calm.")
    os.utime(text, (1, 1))
    if sys.platform == "linux":  # its ctime is now: nothing is remembered until two seconds have gone by
        store = prepare([text], tokenizer)
        assert not list((cache / "hashes").iterdir())
        assert prepare([text], tokenizer) == store
