"""Which encoding a file is in: marks first, then UTF-8, then a guess that must be sure."""

from __future__ import annotations

import codecs
from types import SimpleNamespace

import pytest

from minimind.base.errors import UserError
from minimind.data.read.charsets import _few, _guess, decode, find_encoding, to_utf8

CHINESE = "山上的小猫看见了河边的朋友，天气很好。\n" * 20
MARKS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


def find(raw: bytes, complete: bool = True, asked: str | None = None) -> tuple[str, float, int]:
    return find_encoding(raw, complete, "f.txt", asked)


@pytest.mark.parametrize("encoding", MARKS)
def test_a_mark_decides_whatever_was_asked(encoding: str) -> None:
    raw = MARKS[encoding] + CHINESE.encode(encoding)
    assert find(raw) == find(raw, asked="gbk") == (encoding, 1.0, len(MARKS[encoding]))
    parts = [raw[len(MARKS[encoding]) :][i : i + 7] for i in range(0, len(raw), 7)]
    assert b"".join(to_utf8(parts, encoding, "f.txt")).decode() == CHINESE


@pytest.mark.parametrize("encoding", ["gbk", "gb2312", "gb18030"])
def test_gb_families_are_one(encoding: str) -> None:
    raw = CHINESE.encode(encoding)
    assert find(raw)[0] == "gb18030" and find(raw, asked=encoding) == ("gb18030", 1.0, 0)
    assert decode(raw.splitlines()[0], "gb18030") == CHINESE.splitlines()[0]


def test_what_is_mostly_utf8_is_utf8_with_bad_lines() -> None:
    good, bad = "海很平静".encode(), "海很平静".encode("gbk")
    assert find(b"\n".join([good, good, bad])) == ("utf-8", 1.0, 0)
    assert find(b"plain\nASCII\n") == ("utf-8", 1.0, 0)
    with pytest.raises(UserError, match="its encoding can't be told"):
        find(b"\n".join([good, bad, bad]))


def test_a_sample_that_ends_inside_a_character_is_no_bad_line() -> None:
    raw = "海很平静\n山上".encode()[:-1]
    assert find(raw, complete=False) == ("utf-8", 1.0, 0)
    one_line = ("海很 " * 9).encode()[:-2]
    assert find(one_line, complete=False) == ("utf-8", 1.0, 0)


@pytest.mark.parametrize("nuls", [6, 40])
def test_nul_bytes_are_binary_or_utf16_without_its_mark(nuls: int) -> None:
    with pytest.raises(UserError, match="full of NUL bytes"):
        find(b"a" * 100 + b"\0" * nuls)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize(
    "text", ["今天天气很好，我们去玩。\n", "plain text, and more of it\n", "吾輩は猫である。\n", "동해 물과 백두산이\n"]
)
def test_a_wide_encoding_without_its_mark_is_named(encoding: str, text: str) -> None:
    with pytest.raises(UserError, match=f"{encoding.upper()} without its mark; name it with --encoding {encoding}"):
        find((text * 20).encode(encoding))


def test_a_few_nul_bytes_are_not() -> None:
    assert find(b"a" * 100 + b"\0" * 3)[0] == "utf-8"


def test_a_few_foreign_bytes_are_too_few_to_tell() -> None:
    short = "今天天气很好我们去玩".encode("gbk")
    with pytest.raises(UserError, match=r"best guess gb\w+, confidence 1.00 from 20 bytes"):  # sure, of too little
        find(short)
    assert find(short * 2)[0] == "gb18030"


CODE = 'fn main() {\n    println!("%s"); // 0x1F `let` <T> ::\n}\n| %s | `--flag` | %d |\n'


@pytest.mark.parametrize(
    ("encoding", "found", "words"),
    [
        ("gbk", "gb18030", "输出一行文字变量不可以再次赋值所有权借用与引用的规则"),
        ("big5", "big5hkscs", "輸出一行文字變數不可以再次賦值所有權借用與引用的規則"),
    ],
)
def test_words_between_code_are_enough(encoding: str, found: str, words: str) -> None:
    """charset-normalizer takes so much code between them for noise."""
    text = "".join(CODE % (words[n % 9 : n % 9 + 8], words[n % 7 + 9 : n % 7 + 17], n) for n in range(60))
    assert find(text.encode(encoding))[0] == found


@pytest.mark.parametrize("encoding", ["euc_kr", "euc_jp", "shift_jis", "cp1251", "koi8_r", "cp1252"])
def test_other_scripts_between_code_are_not_taken_for_chinese(encoding: str) -> None:
    words = {
        "euc_kr": "동해물과백두산이마르고닳도록",
        "cp1251": "Все счастливые семьи",
        "koi8_r": "Все счастливые семьи",
    }
    said = words.get(encoding, "Être où êtes été" if encoding == "cp1252" else "吾輩は猫である名前はまだ無い")
    with pytest.raises(UserError, match="can't be told"):
        find("".join(CODE % (said, said[::-1], n) for n in range(60)).encode(encoding))


def test_bytes_that_are_not_text_are_named_by_their_place() -> None:
    with pytest.raises(ValueError, match=r"not valid UTF-8 at byte 3 of the line; if the file is GBK"):
        decode(b"ab\xff", "utf-8")
    with pytest.raises(ValueError, match=r"not valid GB18030 at byte 1 of the line$"):
        decode(b"\xff", "gb18030")


def test_an_unknown_encoding_and_a_cut_file_are_said() -> None:
    with pytest.raises(UserError, match="--encoding klingon is not an encoding"):
        find(b"abc", asked="klingon")
    with pytest.raises(UserError, match="ends in the middle of a UTF-16-LE character"):
        list(to_utf8([b"a\0b"], "utf-16-le", "f.txt"))
    assert list(to_utf8([b"a\0b"], "utf-16-le", "f.txt", final=False)) == [b"a"]


@pytest.mark.parametrize(("encoding", "found"), [("gbk", "gb18030"), ("big5", "big5hkscs")])
@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_sample_ends_at_a_whole_character(encoding: str, found: str, shift: int, end: str) -> None:
    """Whatever the position of the 256 KiB border: in a character of two bytes or between two."""
    text = {"gbk": "山上的朋友很好，天气也很好。", "big5": "數學是利用符號語言研究數量、結構、變化的一門學科。"}[
        encoding
    ] + end
    raw = b"x" * shift + (text * 8_000).encode(encoding)
    assert find(raw)[0] == find(raw[: (1 << 18) + 7], complete=False)[0] == found


def test_one_line_without_a_space_is_judged_by_its_characters() -> None:
    raw = ("山上的朋友很好" * 100).encode("gbk")
    assert find(raw[:-1], complete=False)[0] == "gb18030"


@pytest.mark.parametrize(
    "raw",
    [
        ("山上的朋友很好，" * 20).encode() + b"\xff",
        b"plain words\n" * 30 + b"caf\xe9\n",
        b'{"text": "a"}\n{"text": "b\xff"}\n{"text": "c"}\n',
        b"[" + b'{"text": "plain"}, ' * 50 + b'{"text": "\xff"}]',
    ],
)
def test_a_stray_byte_is_a_bad_line_and_no_bad_file(raw: bytes) -> None:
    assert find(raw) == ("utf-8", 1.0, 0)


@pytest.mark.parametrize(
    ("text", "encoding", "advice"),
    [
        ("안녕하세요. 오늘은 날씨가 좋습니다.\n" * 20, "euc_kr", "cp949"),
        ("これは日本語の文章です。漢字とかな。\n" * 20, "shift_jis", "shift_jis"),
        ("Сегодня хорошая погода, и мы пошли в лес.\n" * 20, "cp1251", "cp1251"),
    ],
)
def test_the_advice_names_the_guess(text: str, encoding: str, advice: str) -> None:
    with pytest.raises(UserError, match=f"for example --encoding {advice}$"):
        find(text.encode(encoding))


@pytest.mark.parametrize(
    ("encoding", "named"),
    [("iso2022_jp", "ISO-2022-JP"), ("iso2022_kr", "ISO-2022-KR"), ("hz", "HZ"), ("utf-7", "UTF-7")],
)
def test_seven_bit_encodings_are_not_utf8(encoding: str, named: str) -> None:
    text = {"iso2022_kr": "안녕하세요 오늘은", "iso2022_jp": "これは日本語"}.get(encoding, "山上的朋友很好")
    raw = f"{text}\nplain\n".encode(encoding)
    with pytest.raises(UserError, match=f"{named}, not UTF-8; name it with --encoding"):
        find(raw)
    assert find(raw, asked="utf-8")[0] == "utf-8"
    asked = find(raw, asked=encoding)[0]
    if encoding != "iso2022_kr":  # its header stands in the first line only
        assert decode(raw.split(b"\n")[0], asked) == text


@pytest.mark.parametrize("raw", [b"1 + 1 = 2, a+b, i++;\n", b"call +8613812345678 or +41\n", b"base64 QUJD+RA==\n"])
def test_a_plus_is_not_utf7(raw: bytes) -> None:
    assert find(raw * 9) == ("utf-8", 1.0, 0)


@pytest.mark.parametrize("name", ["base64", "rot13", "idna", "punycode", "undefined", "unicode_escape"])
def test_a_codec_that_is_no_encoding_of_files_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="is not an encoding of text files"):
        find(b"abc", asked=name)


GOOD, BAD = "海很平静".encode(), b"\xff"


@pytest.mark.parametrize(
    ("bad", "lines", "few"),
    [
        ([BAD * 3], [BAD * 3, GOOD, GOOD], True),  # three strays are few in any text ...
        ([BAD * 4], [BAD * 4, GOOD, GOOD], False),
        ([BAD * 3], [BAD * 3, GOOD], False),  # ... whose lines are mostly good,
        ([BAD * 10], [BAD * 10, *[b"a" * 500] * 2], True),  # and so is one in a hundred,
        ([BAD * 11], [BAD * 11, *[b"a" * 500] * 2], False),
        ([BAD * 2 + b"a" * 198], [BAD * 2 + b"a" * 198], True),  # in a single line, too
        ([BAD * 2 + b"a" * 197], [BAD * 2 + b"a" * 197], False),
    ],
)
def test_how_many_strays_are_few(bad: list[bytes], lines: list[bytes], few: bool) -> None:
    assert _few(bad, lines) is few


@pytest.mark.parametrize(
    ("found", "guess"),
    [
        ([], ("unknown", 0.0)),
        ([("cp1252", 0.0)], ("cp1252", 1.0)),
        ([("cp1252", 0.05)], ("cp1252", 0.75)),  # against what a text of another encoding comes to at least, 0.2
        ([("cp1252", 0.05), ("cp1251", 0.1)], ("cp1252", 0.5)),
        ([("cp1251", 0.1), ("cp1252", 0.1)], ("cp1251", 0.0)),
        ([("gbk", 0.05), ("gb18030", 0.05), ("big5", 0.1)], ("gbk", 0.5)),  # one of the family is no rival
        ([("cp1252", 0.3)], ("cp1252", 0.0)),
        ([("cp1252", 0.0), ("cp1251", 0.0)], ("cp1252", 0.0)),
    ],
)
def test_a_guess_is_as_sure_as_it_is_better_than_the_next(
    found: list[tuple[str, float]], guess: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    import charset_normalizer

    matches = [SimpleNamespace(encoding=encoding, chaos=chaos) for encoding, chaos in found]
    monkeypatch.setattr(charset_normalizer, "from_bytes", lambda *_, **__: matches)
    assert _guess(b"x") == (guess[0], pytest.approx(guess[1]))
