"""check: what it says about a file is what a store of that file would hold."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from minimind.data.check import check as module
from minimind.data.check.check import check_files
from minimind.data.check.report import CheckReport, FileReport
from minimind.data.check.statistics import SCRIPTS, Duplicates, count_scripts, minhash, percentiles
from minimind.data.check.view import show
from minimind.data.records.options import ReadingOptions
from minimind.data.store.prepare import prepare
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer
from tests.support import WORDS


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def talk(*contents: str) -> dict[str, object]:
    roles = ("user", "assistant") * len(contents)
    return {"conversations": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


def only(report: CheckReport) -> FileReport:
    (file,) = report.files
    return file


def test_counts_are_those_of_the_store(tmp_path: Path, tokenizer: Tokenizer) -> None:
    draw = random.Random(3)
    long = "山水" * 100
    rows: list[object] = [talk(*draw.choices(WORDS, k=draw.randrange(2, 30))) for _ in range(100)]
    rows += [talk("q", long), talk(long, "a"), {"conversations": None}, talk("q", "a", "r")]
    path = write(tmp_path / "a.jsonl", rows)
    report = only(check_files([path], tokenizer, max_seq_length=60))
    options = {"kind": "sft", "max_seq_length": 60, "reading": ReadingOptions(skip_bad=True, max_bad_ratio=0.5)}
    store = TokenStore.open(prepare([path], tokenizer, tmp_path / "store", cache_dir=tmp_path, **options))  # type: ignore[arg-type]
    counts = store.manifest["counts"]
    assert (report.kind, report.records, report.used, report.rejected) == (
        "sft",
        counts["records"],
        counts["used"],
        counts["rejected"],
    )
    assert report.tokens == counts["tokens"] == store.num_tokens
    assert report.trainable_share == round(store.num_trainable / store.num_tokens, 4)
    assert report.trimmed == counts["trimmed"]
    assert report.truncated == counts["shortened"] + counts["answers_cut"]
    assert (report.answers_cut, report.answers_lost) == (counts["answers_cut"], counts["too_long"]) == (1, 1)
    assert report.tokens_per_document is not None
    assert report.tokens_per_document["max"] == store.lengths.max()
    assert report.row_fill is not None
    assert 0.5 < report.row_fill <= 1
    assert not report.ok
    assert f"{path}:103: the turns are null, not a list" in report.bad


def test_a_good_file_is_ok_and_says_what_it_is(tmp_path: Path, tokenizer: Tokenizer) -> None:
    report = check_files([write(tmp_path / "a.jsonl", [{"text": "sea 海"}, {"text": "day", "id": 3}])], tokenizer)
    file = only(report)
    assert report.ok
    assert (file.container, file.encoding, file.kind) == ("jsonl", "utf-8", "pretrain")
    assert (file.formats, file.fields) == ({"text": 2}, {"text": 2, "id": 1})
    assert file.characters == 8
    assert file.characters_per_document == {"min": 3, "p5": 3, "p50": 3, "p95": 5, "p99": 5, "max": 5}
    assert file.scripts == {"latin": 0.8571, "han": 0.1429}
    assert "".join(text for text, _ in file.sample) == "<s>sea 海</s>"
    assert [trainable for _, trainable in file.sample] == [False, True]


def test_too_long_is_no_bad_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [talk("q", "a"), talk("山水" * 100, "a")])
    report = check_files([path], tokenizer, max_seq_length=60)
    assert (only(report).rejected, report.ok) == (1, True)


def test_the_sample_marks_exactly_the_trained_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    report = check_files([write(tmp_path / "a.jsonl", [talk("sea", "day", "山", "水")])], tokenizer)
    assert [text for text, trainable in only(report).sample if trainable] == ["day<|im_end|>", "水<|im_end|>"]


def test_without_a_tokenizer(tmp_path: Path) -> None:
    report = check_files([write(tmp_path / "a.jsonl", [talk("q", "a"), {"x": 1}])])
    file = only(report)
    assert (file.tokens, file.row_fill, file.used, file.rejected) == (None, None, 1, 1)
    assert file.turns_per_document["max"] == 2
    show(report, Console(file=io.StringIO()))


def test_an_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    pointer = tmp_path / "a.jsonl"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\n")
    broken = tmp_path / "b.json"
    broken.write_text('[{"text": "a"},\n{"text": }]')
    good = write(tmp_path / "c.jsonl", [{"text": "a"}])
    report = check_files([pointer, broken, good, tmp_path / "absent"])
    assert [file.error is None for file in report.files] == [False, False, True, False]
    assert "Git LFS" in str(report.files[0].error)
    assert f"{broken}:2:10: not JSON" in str(report.files[1].error)
    assert not report.ok


def test_bad_lines_are_all_counted_and_some_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LISTED", 30)
    path = write(tmp_path / "a.jsonl", [{"text": None}] * 40 + [{"text": f"{n}" * 9} for n in range(5)])
    report = check_files([path])
    file = only(report)
    assert (file.rejected, len(file.bad)) == (40, 30)
    assert file.reasons == {'"text" is null, not a string': 40}
    console = Console(file=io.StringIO(), width=100)
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert f'{path}:20: "text" is null' in shown
    assert f"{path}:21:" not in shown
    assert "and 20 more" in shown


def test_json_and_table(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(tmp_path / "a.jsonl", [talk("[bold]q", "[red]a[/red]")])
    report = check_files([path], tokenizer)
    data = json.loads(json.dumps(report.to_json()))
    assert data["ok"] is True
    assert data["files"][0]["records"] == 1
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    show(report, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "\x1b[32m[red]a[/red]<|im_end|>" in shown  # content is no markup; trained tokens are green
    assert "[bold]q" in shown


def test_maps_and_forced_kinds(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"q": "a", "a": "b"}])
    assert only(check_files([path])).rejected == 1
    assert only(check_files([path], reading=ReadingOptions(map="prompt=q,answer=a"))).used == 1
    assert only(check_files([write(tmp_path / "b.jsonl", [{"text": "x"}])], kind="sft")).rejected == 1


def test_preference_data_is_called_that(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"conversations": [], "chosen": {}, "rejected": {}}])
    assert "preference data" in only(check_files([path])).bad[0]


def test_scripts() -> None:
    text = "abc Ä 汉字！ かな 한국 Привет 12 😀\n"
    counts = dict(zip(SCRIPTS, count_scripts(text).tolist(), strict=True))
    expected = {"han": 2, "latin": 4, "kana": 2, "hangul": 2, "cyrillic": 6, "digits": 2, "punctuation": 1, "emoji": 1}
    assert {name: count for name, count in counts.items() if count} == expected
    assert count_scripts("").sum() == 0


def test_every_character_falls_in_one_script() -> None:
    for start in range(0, 0x110000, 0x1000):
        text = "".join(map(chr, range(start, start + 0x1000)))
        assert 0 <= count_scripts(text).sum() <= len(text)


def test_percentiles_are_lengths_that_occur() -> None:
    assert percentiles([]) == {}
    assert percentiles(np.arange(101)) == {"min": 0, "p5": 5, "p50": 50, "p95": 95, "p99": 99, "max": 100}
    assert set(percentiles([1, 1000]).values()) == {1, 1000}


def test_exact_and_near_duplicates() -> None:
    draw = random.Random(5)
    texts = ["".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(300)) for _ in range(50)]
    found = Duplicates()
    for text in texts:
        found.add(text)
    assert (found.exact, found.near) == (0, 0)
    found.add(texts[7])
    found.add(f"{texts[3]} ！")  # only punctuation more: the same letters
    found.add(texts[4][:150] + "改" + texts[4][151:])  # one character of 300
    assert (found.exact, found.near, found.compared) == (1, 2, 53)


def test_half_the_same_is_not_near() -> None:
    draw = random.Random(6)
    wrong = 0
    for _ in range(100):
        common, one, two = ("".join(chr(draw.randrange(97, 123)) for _ in range(200)) for _ in range(3))
        found = Duplicates()
        found.add(common + one)
        found.add(common + two)
        wrong += found.near
    assert wrong <= 2


def test_minhash_estimates_the_share_of_common_pieces() -> None:
    draw = random.Random(7)
    base = "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(1000))
    other = "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(1000))
    agree = []
    for _ in range(30):
        one, two = minhash(base[:600] + other[:200]), minhash(base[:600] + other[200:400])
        assert one is not None
        assert two is not None
        agree.append((one == two).mean())
        base, other = other, base[::-1]
    assert abs(np.mean(agree) - 593 / 993) < 0.1  # 593 common pieces of 993
    assert minhash("short") is None
