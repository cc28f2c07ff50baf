"""Which encoding a file is in, and its bytes as text. Stated, not guessed: an unsure case is refused.

A byte-order mark decides; else UTF-8 if most lines (or nearly all characters) that are not ASCII are UTF-8; else
GB18030 or Big5 if charset-normalizer is sure enough. What it makes of short texts is why a minimum of bytes is asked
for. Seven-bit encodings (ISO-2022, HZ, UTF-7) would pass for ASCII: they are refused by name.

Every sample ends at a whole character: it is cut after a byte that no multi-byte encoding has inside a character.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from minimind.base.errors import UserError

# The order matters: the UTF-32 mark begins with the UTF-16 one.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-16", "utf-32")  # encodings whose line ends are no single bytes: recoded to UTF-8 before lines are cut
_FAMILIES = {"gb18030": "gb18030", "gbk": "gb18030", "gb2312": "gb18030", "big5": "big5hkscs", "big5hkscs": "big5hkscs"}
_CANDIDATES = [*_FAMILIES, "shift_jis", "euc_jp", "euc_kr", "cp949", "cp1252", "cp1251", "koi8_r"]
_SUPERSETS = {
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "gb2312": "gb18030",
    "big5": "big5hkscs",
}  # read what the other reads
# Codecs that Python calls text and that no file is written in; some fail in ways of their own.
_NO_CHARSETS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
_SAMPLE_BYTES = 1 << 18
_MIN_CONFIDENCE = 0.75
_MIN_FOREIGN_BYTES = 24
_USUAL_SHARE, _TOLD_SHARE = 0.95, 0.15  # of characters: common ones, and those that tell one encoding from another
_STRAY_BYTES = 3  # so many bad bytes are bad lines, whatever the size of the file
_USUAL = re.compile(  # Latin, Greek to Hebrew, and what Chinese, Japanese and Korean are written with
    "[\\t\\r\\n -~\\xa0-\u024f\u0370-\u05ff\u2010-\u2026\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff00-\uffef]"
)
_LOW = re.compile(rb"[\x00-\x2f]")  # no byte of a multi-byte character in any of the encodings
_SEVEN_BIT = (  # escape sequences, and the encoding that they begin
    (re.compile(rb"\x1b\$\)C"), "ISO-2022-KR", "iso2022_kr"),
    (re.compile(rb"\x1b\$\)[AGE]"), "ISO-2022-CN", None),
    (re.compile(rb"\x1b(?:\$[@AB]|\$\(D|\([IJ])"), "ISO-2022-JP", "iso2022_jp"),
    (re.compile(rb"~\{(?:[\x21-\x77][\x21-\x7e])+~\}"), "HZ", "hz"),
)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """As Python's surrogateescape, for bytes below 0x80 too: seven-bit encodings have no others."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


def _escape_wide(error: UnicodeError) -> tuple[str | bytes, int]:
    """Lone surrogates as they are, and what is no character of UTF-32 as bytes; an end in the middle stays an error."""
    try:
        return codecs.lookup_error("surrogatepass")(error)
    except UnicodeDecodeError as refused:
        if "truncated" in refused.reason:
            raise
        return _escape(refused)


ESCAPE = "minimind.escape"
"""An error handler: bytes that are not text become lone surrogates, which no record may hold."""
_ESCAPE_WIDE = "minimind.escape-wide"
codecs.register_error(ESCAPE, _escape)
codecs.register_error(_ESCAPE_WIDE, _escape_wide)


def find_encoding(raw: bytes, complete: bool, name: str, asked: str | None) -> tuple[str, float, int]:
    """(encoding, confidence, bytes of the byte-order mark). Raises UserError where it can't be told."""
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return encoding, 1.0, len(mark)
    if asked is not None:
        return _known(asked, name), 1.0, 0
    full = raw.count(0) > len(raw) // 20
    wide = _unmarked(raw) if full or (0 in raw and not _is_utf8(raw if complete else _whole(raw))) else None
    if wide is not None:
        raise UserError(f"{name}: {wide.upper()} without its mark; name it with --encoding {wide}")
    if full:
        raise UserError(f"{name}: full of NUL bytes: binary, or in an encoding that must be named with --encoding")
    if not complete:
        raw = raw[: raw.rfind(b"\n") + 1] or _whole(raw)
    _refuse_seven_bit(raw, name)
    lines = [line for line in raw.split(b"\n") if line and not line.isspace()]
    foreign = [line for line in lines if not line.isascii()]
    bad = [line for line in foreign if not _is_utf8(line)]
    if len(bad) * 2 < max(1, len(foreign)) or _nearly_utf8(bad):
        return "utf-8", 1.0, 0  # the others are bad lines, not another encoding
    try:
        return (*_detect(b"\n".join(foreign), complete, name), 0)
    except UserError:
        if _few(bad, lines):
            return "utf-8", 1.0, 0
        raise


def decode(line: bytes, encoding: str) -> str:
    """One line as text. Raises ``ValueError`` with a reason for a user when the bytes are not in ``encoding``."""
    name = line_encoding(encoding)
    try:
        return line.decode(name)
    except UnicodeDecodeError as error:
        hint = "; if the file is GBK or Big5, say --encoding" if name == "utf-8" else ""
        raise ValueError(f"not valid {name.upper()} at byte {error.start + 1} of the line{hint}") from None


def line_encoding(encoding: str) -> str:
    """What the lines of a file in ``encoding`` are in once `to_utf8` has recoded it."""
    return "utf-8" if encoding.startswith((*_WIDE, "utf-8")) else encoding


def to_utf8(parts: Iterable[bytes], encoding: str, name: str, final: bool = True) -> Iterator[bytes]:
    """Recode UTF-16/32. Lone surrogates pass through as bytes that ``decode`` then refuses, line by line."""
    if not encoding.startswith(_WIDE):
        yield from parts
        return
    decoder = codecs.getincrementaldecoder(encoding)(_ESCAPE_WIDE)
    for part in parts:
        yield decoder.decode(part).encode("utf-8", "surrogatepass")
    try:
        decoder.decode(b"", final=final)
    except UnicodeDecodeError:
        raise UserError(f"{name}: ends in the middle of a {encoding.upper()} character; is it truncated?") from None


def _known(encoding: str, name: str) -> str:
    try:
        found = codecs.lookup(encoding)
    except (LookupError, ValueError):
        raise UserError(f"{name}: --encoding {encoding} is not an encoding that Python knows") from None
    if not found._is_text_encoding or found.name.replace("-", "_") in _NO_CHARSETS:
        raise UserError(f"{name}: --encoding {encoding} is not an encoding of text files")
    if found.name in ("gbk", "gb2312"):
        return "gb18030"
    return {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(found.name, found.name)


def _unmarked(raw: bytes) -> str | None:
    """The wide encoding in which nearly all characters are letters that texts are made of; None if none is it.

    It is asked only of what has NUL bytes and isn't UTF-8, or is full of them: in these each space has one.
    """
    for encoding, width in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        text = raw[: min(len(raw), _SAMPLE_BYTES) // width * width].decode(encoding, "replace")
        if text and len(_USUAL.findall(text)) >= _USUAL_SHARE * len(text):
            return encoding
    return None


def _whole(raw: bytes, size: int | None = None) -> bytes:
    """The start of ``raw``, at most ``size`` bytes, that ends at a whole character in any of the encodings.

    Without a byte that says so among the last thousand, the unfinished end of a UTF-8 character is cut, or nothing:
    `_detect` then tries the few ends that there are.
    """
    if size is not None and len(raw) <= size:
        return raw
    raw = raw[:size]
    if end := _last_low(raw):
        return raw[:end]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw)
    whole = raw[: len(raw) - len(decoder.getstate()[0])]
    return whole if _is_utf8(whole) else raw


def _last_low(raw: bytes) -> int:
    """Where the last byte below 0x30 of the last thousand ends; 0 without one."""
    start = max(0, len(raw) - 1000)
    found = list(_LOW.finditer(raw, start))
    return found[-1].end() if found else 0


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _nearly_utf8(lines: list[bytes]) -> bool:
    """Whether at least 9 in 10 of the characters that are not ASCII are UTF-8: GBK and Big5 come to about 2."""
    text = b"\n".join(lines)[:_SAMPLE_BYTES].decode("utf-8", "surrogateescape")
    foreign = [character for character in text if character > "\x7f"]
    strays = sum("\udc80" <= character <= "\udcff" for character in foreign)
    return strays * 10 <= len(foreign)


def _few(bad: list[bytes], lines: list[bytes]) -> bool:
    """Whether the bytes that are not UTF-8 are strays in a text that is otherwise ASCII or UTF-8."""
    size = sum(map(len, lines))
    text = b"\n".join(bad).decode("utf-8", "surrogateescape")
    strays = sum("\udc80" <= character <= "\udcff" for character in text)
    most_lines_are_good = len(bad) * 2 < len(lines)
    return strays <= max(_STRAY_BYTES, size // 100) and (most_lines_are_good or strays * 100 <= size)


def _refuse_seven_bit(raw: bytes, name: str) -> None:
    """ISO-2022, HZ and UTF-7 look like ASCII and would be trained as the letters of their escape sequences."""
    if not raw.isascii():
        return
    for sequence, spelled, encoding in _SEVEN_BIT:
        if sequence.search(raw) and (encoding != "hz" or _decodes(raw, encoding)):
            advice = f"name it with --encoding {encoding}, or --encoding utf-8 if it is not"
            raise UserError(f"{name}: {spelled}, not UTF-8; {advice if encoding else 'convert it to UTF-8'}")
    if _is_utf7(raw):
        raise UserError(f"{name}: UTF-7, not UTF-8; name it with --encoding utf-7, or --encoding utf-8 if it is not")


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        return not raw.decode(encoding).isascii()
    except UnicodeError:
        return False


def _is_utf7(raw: bytes) -> bool:
    """Whether each ``+`` begins UTF-7's form of characters, and those are words of some script."""
    if b"+" not in raw:
        return False
    try:
        found = [character for character in raw.decode("utf-7") if character > "\x7f"]
    except UnicodeError:
        return False
    letters = sum(character.isalpha() for character in found)
    return letters >= 4 and letters * 10 >= len(found) * 7 and all(character.isprintable() for character in found)


def _detect(raw: bytes, complete: bool, name: str) -> tuple[str, float]:
    """GB18030 or Big5 with a confidence of at least 0.75, else ``UserError`` with the best guess.

    The confidence is 1 - chaos(best) / chaos(runner-up of another family), chaos being charset-normalizer's measure of
    how unlike a real text the decoded one is; it gives up on an encoding at 0.2, which stands for "no runner-up".
    """
    sample = _whole(raw, _SAMPLE_BYTES)
    whole = (complete and len(sample) == len(raw)) or _last_low(sample)  # else one of four ends is a character's
    ends = range(1 if whole else 4)
    best, confidence = max((_guess(sample[: len(sample) - cut]) for cut in ends), key=lambda guess: guess[1])
    family = _FAMILIES.get(best, best)
    foreign_bytes = sum(1 for byte in sample if byte >= 0x80)
    if foreign_bytes >= _MIN_FOREIGN_BYTES and (family not in _FAMILIES.values() or confidence < _MIN_CONFIDENCE):
        family, confidence = _by_common_characters(sample) or (family, confidence)
    if family not in _FAMILIES.values() or confidence < _MIN_CONFIDENCE or foreign_bytes < _MIN_FOREIGN_BYTES:
        advice = (
            "--encoding" if best == "unknown" else f"--encoding, for example --encoding {_SUPERSETS.get(best, best)}"
        )
        raise UserError(
            f"{name}: not UTF-8, and its encoding can't be told (best guess {best}, confidence {confidence:.2f} from "
            f"{foreign_bytes} bytes); name it with {advice}"
        )
    return family, round(confidence, 2)


def _by_common_characters(sample: bytes) -> tuple[str, float] | None:
    """(encoding, share) where nearly all characters that are not ASCII are the most common ones of GB2312 or Big5.

    Of text between much code charset-normalizer is unsure. GB2312 has the common characters at the lead bytes B0 to D7
    and punctuation at A1 to A3; half of the former lie behind C8, where Korean's, at the same place, end. Big5 has them
    at A4 to C6, and its second bytes are ASCII's half of the time.
    """
    for encoding, common, telling in (
        ("gb18030", re.compile(rb"[\xa1-\xa3\xb0-\xd7][\xa1-\xfe]"), re.compile(rb"[\xc9-\xd7][\xa1-\xfe]")),
        ("big5hkscs", re.compile(rb"[\xa1-\xc6][\x40-\x7e\xa1-\xfe]"), re.compile(rb"[\xa1-\xc6][\x40-\x7e]")),
    ):
        if not _decodes(sample, encoding):
            continue
        pairs = [character.encode(encoding) for character in sample.decode(encoding) if character > "\x7f"]
        usual = sum(common.fullmatch(pair) is not None for pair in pairs)
        told = sum(telling.fullmatch(pair) is not None for pair in pairs)
        if usual >= _USUAL_SHARE * len(pairs) and told >= _TOLD_SHARE * len(pairs):
            return encoding, round(usual / len(pairs), 2)
    return None


def _guess(sample: bytes) -> tuple[str, float]:
    """(encoding, confidence) of the one that fits best; ("unknown", 0.0) if none does."""
    from charset_normalizer import from_bytes

    found = sorted(
        ((m.chaos, m.encoding) for m in from_bytes(sample, cp_isolation=_CANDIDATES)), key=lambda pair: pair[0]
    )
    best_chaos, best = found[0] if found else (1.0, "unknown")
    family = _FAMILIES.get(best, best)
    runner_up = min([chaos for chaos, other in found if _FAMILIES.get(other, other) != family] + [0.2])
    return best, max(0.0, 1 - best_chaos / runner_up) if runner_up > 0 else 0.0
