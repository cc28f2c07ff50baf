"""prepare: every record accounted for, one finished store, cached by content, whatever happens meanwhile."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.data.read.sources import Chunk, Record
from minimind.data.records import rejects as tally
from minimind.data.records.encoding import Options, encode_chunk, split_marked
from minimind.data.records.options import ReadingOptions
from minimind.data.store import prepare as module
from minimind.data.store.prepare import prepare
from minimind.data.store.store import StoreWriter, TokenStore
from minimind.text.tokenizer import Tokenizer
from tests.support import WORDS
from tests.waiting import PATIENCE, wait_for

AS_WRITTEN, LENIENT = ReadingOptions(allow_special=True), ReadingOptions(skip_bad=True, max_bad_ratio=1)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def write(path: Path, rows: list[object] | str) -> Path:
    if not isinstance(rows, str):
        rows = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(rows.encode())
    return path


def talk(*contents: str) -> dict[str, object]:
    roles = ("user", "assistant") * len(contents)
    return {"conversations": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


def counts(store: Path) -> dict[str, int]:
    return json.loads((store / "manifest.json").read_text())["counts"]


def rejects(store: Path) -> list[dict[str, Any]]:
    path = store.with_name(store.name + ".rejected.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def quiet(_: str) -> None:
    return None


def test_pretraining_texts_come_back_from_the_store(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randrange(1, 400))) for _ in range(300)]
    first = write(tmp_path / "a.jsonl", [{"text": text} for text in texts[:200]])
    second = write(tmp_path / "b.txt", "\n\n".join(texts[200:]))
    store = TokenStore.open(prepare([first, second], tokenizer, cache_dir=cache, workers=3, say=quiet))
    assert len(store) == 300
    for index, text in enumerate(texts):
        ids = store.document(index).tolist()
        assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
        assert tokenizer.decode(ids[1:-1]) == text
        assert store.document_bytes[index] == len(text.encode())
        assert store.source(index) == ((str(first), index + 1) if index < 200 else (str(second), 2 * (index - 200) + 1))
    assert counts(store.path)["tokens"] == store.num_tokens
    assert counts(store.path)["trainable_tokens"] == store.num_trainable == store.num_tokens - 300


def test_conversations_carry_loss_on_answers_only(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [talk("question 一", "answer 二"), talk("q", "山", "r", "水 of day")])
    store = TokenStore.open(prepare([path], tokenizer, kind="sft", cache_dir=cache, say=quiet))
    spoken = []
    for index in range(len(store)):
        flags = store.trainable(index)
        assert flags is not None
        spoken.append(tokenizer.decode(store.document(index)[flags].tolist(), with_special=True))
    assert spoken == ["answer 二<|im_end|>", "山<|im_end|>水 of day<|im_end|>"]
    assert store.document_bytes.tolist() == [len("answer 二".encode()), len("山水 of day".encode())]
    assert counts(store.path)["trainable_tokens"] == store.num_trainable


def test_used_and_rejected_are_all_records_whatever_the_lines(
    tmp_path: Path, cache: Path, tokenizer: Tokenizer
) -> None:
    good, bad = (
        '{"text": "sea"}',
        ['{"text": null}', "not json", '{"text": "\\ud800"}', "[" * 100_000, '{"a": 1}', "7"],
    )
    draw = random.Random(2)
    lines = [draw.choice([good, good, *bad, "", "   "]) for _ in range(3000)]
    lines[0] = good
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    store = prepare([path], tokenizer, cache_dir=cache, reading=LENIENT, workers=2, say=quiet)
    found = counts(store)
    filled = [number for number, line in enumerate(lines, 1) if line.strip()]
    assert found["records"] == len(filled) == found["used"] + found["rejected"]
    assert found["used"] == lines.count(good) == len(TokenStore.open(store))
    expected = [number for number in filled if lines[number - 1] != good]
    assert [reject["line"] for reject in rejects(store)] == expected


def test_strict_by_default_with_file_and_line(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}, {"text": None}, {"text": ""}, {"text": "sea"}])
    with pytest.raises(UserError) as caught:
        prepare([path], tokenizer, cache_dir=cache, say=quiet)
    assert str(caught.value) == (
        "2 of 4 records read are bad (--skip-bad leaves them out):\n"
        f'  {path}:2: "text" is null, not a string\n  {path}:3: "text" is empty'
    )
    assert not [entry for entry in (cache / "stores").iterdir() if entry.is_dir()]


def test_strict_stops_after_twenty(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}, *[{"text": None}] * 50])
    with pytest.raises(UserError, match="at least 50 of 51") as caught:
        prepare([path], tokenizer, cache_dir=cache, say=quiet)
    assert str(caught.value).count("\n") == 20


def test_a_whole_file_of_the_wrong_kind_is_one_line(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [{"chosen": "a", "rejected": "b"}] * 100)
    with pytest.raises(UserError) as caught:
        prepare([path], tokenizer, kind="sft", cache_dir=cache, say=quiet)
    assert "\n" not in str(caught.value)
    assert f"{path}:1: preference data" in str(caught.value)


def test_the_share_of_bad_records_is_limited(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}] * 98 + [{"text": None}] * 2)
    with pytest.raises(UserError, match=r"2 of 100 records read are bad \(the limit is 1.0%\)"):
        prepare([path], tokenizer, cache_dir=cache, reading=ReadingOptions(skip_bad=True), say=quiet)
    said: list[str] = []
    limit = ReadingOptions(skip_bad=True, max_bad_ratio=0.02)
    store = prepare([path], tokenizer, cache_dir=cache, reading=limit, say=said.append)
    assert [reject["reason"] for reject in rejects(store)] == ['"text" is null, not a string'] * 2
    assert any("2 bad records left out" in line for line in said)


def test_files_without_a_record(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    for name, text, said in (
        ("a.jsonl", "", "0 bytes"),
        ("b.jsonl", "\n\n", "no record"),
        ("c.json", "[]", "no record"),
    ):
        with pytest.raises(UserError, match=said):
            prepare([write(tmp_path / name, text)], tokenizer, cache_dir=cache, say=quiet)
    with pytest.raises(UserError, match="no file to prepare"):
        prepare([], tokenizer, cache_dir=cache, say=quiet)


def test_too_long_conversations_are_shortened_or_counted(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    short, long = "sea", "山水" * 200
    rows = [
        talk(short, short),
        talk(*[short] * 60),  # loses turns
        talk(short, long),  # loses the answer's end
        talk(long, short),  # no room for the answer
        talk(short, short, short),  # ends with the user
    ]
    path, said = write(tmp_path / "a.jsonl", rows), list[str]()
    store = prepare([path], tokenizer, kind="sft", max_seq_length=60, cache_dir=cache, say=said.append)
    found = counts(store)
    names = ("records", "used", "rejected", "too_long", "shortened", "answers_cut", "trimmed")
    assert [found[name] for name in names] == [5, 4, 1, 1, 1, 1, 1]
    assert [(r["line"], r["too_long"]) for r in rejects(store)] == [(4, True)]
    opened = TokenStore.open(store)
    assert opened.lengths.max() <= 61
    for index in range(len(opened)):
        flags = opened.trainable(index)
        assert flags is not None
        assert flags.any()
    assert opened.document_bytes[2] < len(long.encode())
    assert len([line for line in said if line.startswith("  ")]) == 4
    with pytest.raises(UserError, match="nothing to train on"):
        prepare([write(tmp_path / "b.jsonl", [rows[3]])], tokenizer, kind="sft", max_seq_length=60, cache_dir=cache)


def test_long_texts_are_never_cut(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    text = "山水 " * 100_000
    path = write(tmp_path / "a.jsonl", [{"text": text}])
    store = TokenStore.open(prepare([path], tokenizer, cache_dir=cache, max_seq_length=16, say=quiet))
    assert tokenizer.decode(store.document(0)[1:-1].tolist()) == text


MARKED = "<|im_start|>sea<|im_end|> <|im_start|>山<|im_end|>"


def test_special_token_strings_are_text_unless_the_file_was_written_with_them(
    tmp_path: Path, cache: Path, tokenizer: Tokenizer
) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": MARKED}, {"text": "plain"}])
    plain = TokenStore.open(prepare([path], tokenizer, cache_dir=cache, say=quiet))
    assert tokenizer.decode(plain.document(0)[1:-1].tolist()) == MARKED
    assert tokenizer.im_start_id not in plain.tokens
    marked = TokenStore.open(prepare([path], tokenizer, cache_dir=cache, reading=AS_WRITTEN, say=quiet))
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    expected = [[bos, *tokenizer.encode(text), eos] for text in ("sea", "山", "plain")]
    assert [marked.document(index).tolist() for index in range(len(marked))] == expected
    assert [marked.source(index)[1] for index in range(3)] == [1, 1, 2]
    assert (counts(marked.path)["used"], counts(marked.path)["documents"]) == (2, 3)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (MARKED, ["sea", "山"]),
        ("<s>sea</s><s>山</s>", ["sea", "山"]),
        ("before <|im_start|>sea<|im_end|>", ["before ", "sea"]),
        ("no marks", ["no marks"]),
        ("<|im_start|><|im_end|> ", []),
        ("<|im_start|>user\nsea<|im_end|>\n<|im_start|>assistant\n山<|im_end|>\n", None),
    ],
)
def test_texts_with_marks(text: str, pieces: list[str] | None, tokenizer: Tokenizer) -> None:
    assert split_marked(text) == ([text] if pieces is None else pieces)
    chunk = Chunk("f", parsed=[Record({"text": text}, "f", 3)])
    encoded = encode_chunk(chunk, tokenizer, Options("pretrain", reading=AS_WRITTEN))
    if not pieces and pieces is not None:
        assert str(encoded.rejects[0]) == "f:3: only special tokens, no text"
    assert encoded.counts.used + encoded.counts.rejected == encoded.counts.records == 1
    for document in encoded.documents:
        ids = document.tokens.tolist()
        assert (ids.count(tokenizer.bos_id), ids.count(tokenizer.eos_id)) == (1, 1)
        assert ids.count(tokenizer.im_start_id) == (2 if pieces is None else 0)


def test_the_cache_is_by_content(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}])
    said: list[str] = []

    def made(**options: Any) -> bool:
        said.clear()
        prepare([path], tokenizer, cache_dir=cache, say=said.append, **options)
        return any(line.startswith("prepared") for line in said)

    assert made()
    assert not made()
    assert not made(max_seq_length=99, workers=1)  # rows are cut later
    os.utime(path, (1, 1))
    assert not made()
    assert made(reading=AS_WRITTEN)
    assert made(reading=ReadingOptions(skip_bad=True))
    write(path, [{"text": "sky"}])
    assert made()
    write(path, [{"text": "sea"}])
    assert not made()


def test_a_changed_file_of_the_same_size_and_second_makes_a_new_store(
    tmp_path: Path, cache: Path, tokenizer: Tokenizer
) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}])
    first = prepare([path], tokenizer, cache_dir=cache, say=quiet)
    stamp = path.stat()
    write(path, [{"text": "sky"}])
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert prepare([path], tokenizer, cache_dir=cache, say=quiet) != first


def test_a_named_output_is_replaced_when_its_source_changes(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path, output = write(tmp_path / "a.jsonl", [{"text": "sea"}]), tmp_path / "deep" / "store"
    assert prepare([path], tokenizer, output, cache_dir=cache, say=quiet) == output
    write(path, [{"text": "sky"}, {"text": "sea"}])
    prepare([path], tokenizer, output, cache_dir=cache, say=quiet)
    assert len(TokenStore.open(output)) == 2
    mine = tmp_path / "mine"
    mine.mkdir()
    write(mine / "thesis.txt", "years of work")
    with pytest.raises(UserError, match="exists and is no token store"):
        prepare([path], tokenizer, mine, cache_dir=cache, say=quiet)
    assert (mine / "thesis.txt").exists()


def test_a_failed_rebuild_keeps_the_old_store(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path, output = write(tmp_path / "a.jsonl", [{"text": "sea"}]), tmp_path / "store"
    prepare([path], tokenizer, output, cache_dir=cache, say=quiet)
    write(path, [{"text": None}])
    with pytest.raises(UserError):
        prepare([path], tokenizer, output, cache_dir=cache, say=quiet)
    assert len(TokenStore.open(output)) == 1


def test_stdin_is_a_source(cache: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "sea"}\n')))
    store = TokenStore.open(prepare(["-"], tokenizer, cache_dir=cache, say=quiet))
    assert store.source(0) == ("<stdin>", 1)
    assert not list((cache / "spool").glob("*/*"))


def test_a_foreign_encoding_is_said_with_its_confidence(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("滚滚长江东逝水，浪花淘尽英雄。是非成败转头空，青山依旧在。".encode("gb18030"))
    said: list[str] = []
    store = prepare([path], tokenizer, cache_dir=cache, say=said.append)
    assert "read as GB18030 (confidence" in said[0]
    source = json.loads((store / "manifest.json").read_text())["sources"][0]
    assert (source["encoding"], source["container"], source["records"]) == ("gb18030", "text", 1)


def test_two_at_once_do_not_collide(
    tmp_path: Path, cache: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first, says so, and finds its store."""
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}])
    entered, release = threading.Event(), threading.Event()
    encode = module.encode_chunk

    def slow(*arguments: Any, **named: Any) -> Any:
        entered.set()
        assert release.wait(PATIENCE)
        return encode(*arguments, **named)

    monkeypatch.setattr(module, "encode_chunk", slow)
    said: list[list[str]] = [[], []]
    stores: dict[int, Path] = {}

    def run(number: int) -> None:
        stores[number] = prepare([path], tokenizer, cache_dir=cache, say=said[number].append)

    first = threading.Thread(target=run, args=(0,))
    first.start()
    assert entered.wait(PATIENCE)
    second = threading.Thread(target=run, args=(1,))
    second.start()
    wait_for(lambda: said[1] or not second.is_alive())
    release.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert stores[0] == stores[1]
    assert len([line for line in said[0] if line.startswith("prepared")]) == 1
    assert len(said[1]) == 1
    assert said[1][0].startswith(f"waiting: process {os.getpid()} is preparing the same data")


@pytest.fixture
def killed(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> Path:
    """A file whose preparation was killed half-way, under its lock."""
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}] * 10)
    script = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from minimind.data.store import store
        from minimind.data.store.prepare import prepare
        from minimind.text.tokenizer import Tokenizer
        store.StoreWriter.finish = lambda *_: (print("here", flush=True), time.sleep({PATIENCE}))
        prepare([{str(path)!r}], Tokenizer.load({str(tokenizer.path)!r}), cache_dir=Path({str(cache)!r}))
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return path


def test_a_killed_run_leaves_no_store_no_lock_and_no_debris(killed: Path, cache: Path, tokenizer: Tokenizer) -> None:
    assert not list(cache.glob("stores/*/manifest.json"))
    said: list[str] = []
    store = prepare([killed], tokenizer, cache_dir=cache, say=said.append)
    assert not any(line.startswith("waiting") for line in said)
    assert len(TokenStore.open(store)) == 10
    assert sorted(entry.name for entry in store.parent.iterdir()) == [store.name, store.name + ".lock"]


SCRIPT = """
import resource, sys
from pathlib import Path
from minimind.data.store.prepare import prepare
from minimind.base.errors import UserError
from minimind.text.tokenizer import Tokenizer
path, tokenizer, cache, limit = sys.argv[1:]
if int(limit):
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
print("start", flush=True)
try:
    prepare([path], Tokenizer.load(tokenizer), cache_dir=Path(cache), workers=1)
except UserError as error:
    sys.exit(f"error: {error}")
"""


def process(path: Path, cache: Path, tokenizer: Tokenizer, limit: int = 0) -> subprocess.Popen[str]:
    """Another process that prepares ``path``; it has just begun. ``limit``: bytes that a file may have, its coverage
    among them, which is therefore not measured."""
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(tokenizer.path), str(cache), str(limit)],
        cwd=Path(__file__).parents[3],
        env={name: value for name, value in os.environ.items() if not (limit and name.startswith("COV"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "start\n"
    return started


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    """A file whose preparation takes some tenths of a second and more than one flush."""
    draw = random.Random(3)
    rows: list[object] = [{"text": " ".join(draw.choices(WORDS, k=200))} for _ in range(6000)]
    return write(tmp_path / "larger.jsonl", rows)


def test_killed_at_any_moment_a_store_is_finished_or_absent(larger: Path, cache: Path, tokenizer: Tokenizer) -> None:
    draw, unfinished = random.Random(4), 0
    for number in range(8):
        started = process(larger, cache, tokenizer)
        time.sleep(draw.uniform(0.0, 0.15 * (number + 1)))
        started.kill()
        started.communicate()
        stores = [entry.parent for entry in cache.glob("stores/*/manifest.json")]
        unfinished += not stores
        for store in stores:
            assert len(TokenStore.open(store)) == 6000  # complete, whenever it can be seen
    assert unfinished  # else no kill came in time
    store = prepare([larger], tokenizer, cache_dir=cache, say=quiet)
    assert len(TokenStore.open(store)) == 6000
    assert sorted(entry.name for entry in store.parent.iterdir()) == [store.name, store.name + ".lock"]


def test_processes_that_prepare_the_same_file_make_one_store(larger: Path, cache: Path, tokenizer: Tokenizer) -> None:
    running = [process(larger, cache, tokenizer) for _ in range(3)]
    said = [started.communicate(timeout=PATIENCE)[1] for started in running]
    assert [started.returncode for started in running] == [0, 0, 0]
    assert sum("prepared 6,000 of 6,000 records" in text for text in said) == 1
    (store,) = [entry for entry in (cache / "stores").iterdir() if entry.is_dir()]
    assert len(TokenStore.open(store)) == 6000


def test_a_disk_that_takes_no_more_ends_it_with_one_line_and_no_debris(
    larger: Path, cache: Path, tokenizer: Tokenizer
) -> None:
    """A file may not grow beyond the limit: the operating system's own error, in the middle of a write."""
    started = process(larger, cache, tokenizer, limit=100_000)
    _, said = started.communicate(timeout=PATIENCE)
    assert started.returncode == 1
    assert said.startswith("error: ")
    assert "File too large; free space or name another place" in said
    assert said.count("\n") == 1
    assert [entry.suffix for entry in (cache / "stores").iterdir()] == [".lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, cache: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "sea"}, {"text": None}])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for owner, name in ((StoreWriter, "add"), (tally.Tally, "_write")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(UserError, match="No space left on device") as caught:
                prepare([path], tokenizer, cache_dir=cache, reading=LENIENT, say=quiet)
        assert "\n" not in str(caught.value)
        assert [entry.suffix for entry in (cache / "stores").iterdir()] == [".lock"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path, cache: Path, tokenizer: Tokenizer) -> None:
    import tracemalloc

    peaks = []
    for size in (3, 9):
        path = write(tmp_path / f"{size}.jsonl", [{"text": "sea is calm " * 400}] * 200 * size)
        tracemalloc.start()
        prepare([path], tokenizer, cache_dir=cache, workers=2, say=quiet)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + (1 << 20)


def test_workers_need_no_torch() -> None:
    code = (
        "import sys, minimind.data.store.prepare as p; sys.exit(any(m in sys.modules for m in ('torch', 'deepspeed')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0


def test_no_more_bytes_are_worked_on_at_once_than_the_budget() -> None:
    from threading import Lock

    from minimind.data.store.prepare import in_order

    lock, busy, peaks = Lock(), [], []

    def work(size: int) -> int:
        with lock:
            busy.append(size)
            peaks.append(sum(busy))
        time.sleep(0.002)
        with lock:
            busy.remove(size)
        return size

    sizes = [3, 4, 9, 30, 1, 1, 1, 10, 2, 30]
    assert list(in_order(work, sizes, workers=4, size=int, budget=10)) == sizes
    assert max(peak for peak in peaks if peak < 30) <= 10
    assert sorted(peaks)[-2:] == [30, 30]  # what is larger alone is worked on alone
