"""Which encoding a file is in, and its bytes as text. Stated, not guessed: an unsure case is refused.

A byte-order mark decides; else UTF-8 if most lines that are not ASCII are UTF-8; else GB18030 or Big5 if
charset-normalizer is sure enough. What it makes of short texts is why a minimum of bytes is asked for.
"""

from __future__ import annotations

import codecs
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
_FAMILIES = {"gb18030": "gb18030", "gbk": "gb18030", "gb2312": "gb18030", "big5": "big5hkscs", "big5hkscs": "big5hkscs"}
_CANDIDATES = [*_FAMILIES, "shift_jis", "euc_jp", "euc_kr", "cp949", "cp1252", "cp1251", "koi8_r"]
_SAMPLE_BYTES = 1 << 18
_MIN_CONFIDENCE = 0.75
_MIN_FOREIGN_BYTES = 24


def find_encoding(raw: bytes, complete: bool, name: str, asked: str | None) -> tuple[str, float, int]:
    """(encoding, confidence, bytes of the byte-order mark)."""
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return encoding, 1.0, len(mark)
    if asked is not None:
        return _known(asked, name), 1.0, 0
    if raw.count(0) > len(raw) // 20:
        raise UserError(
            f"{name}: full of NUL bytes: binary, or UTF-16 without its mark (then say --encoding utf-16-le)"
        )
    lines = raw.split(b"\n") if complete else raw.split(b"\n")[:-1] or [raw[: raw.rfind(b" ") + 1]]
    foreign = [line for line in lines if not line.isascii()]
    bad = sum(1 for line in foreign if not _is_utf8(line))
    if not bad or bad * 2 < len(foreign):  # most lines are UTF-8: the others are bad lines, not another encoding
        return "utf-8", 1.0, 0
    return (*_detect(b"\n".join(foreign)[:_SAMPLE_BYTES], name), 0)


def decode(line: bytes, encoding: str) -> str:
    """One line as text. Raises ``ValueError`` with a reason for a user when the bytes are not in ``encoding``."""
    name = encoding if not encoding.startswith("utf-") else "utf-8"
    try:
        return line.decode(name)
    except UnicodeDecodeError as error:
        hint = "; if the file is GBK or Big5, say --encoding" if name == "utf-8" else ""
        raise ValueError(f"not valid {name.upper()} at byte {error.start + 1} of the line{hint}") from None


def to_utf8(parts: Iterable[bytes], encoding: str, name: str, final: bool = True) -> Iterator[bytes]:
    """Recode UTF-16/32. Lone surrogates pass through as bytes that ``decode`` then refuses, line by line."""
    if not encoding.startswith(("utf-16", "utf-32")):
        yield from parts
        return
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    for part in parts:
        yield decoder.decode(part).encode("utf-8", "surrogatepass")
    try:
        decoder.decode(b"", final=final)
    except UnicodeDecodeError:
        raise UserError(f"{name}: ends in the middle of a {encoding.upper()} character; is it truncated?") from None


def _known(encoding: str, name: str) -> str:
    try:
        found = codecs.lookup(encoding).name
    except LookupError:
        raise UserError(f"{name}: --encoding {encoding} is not an encoding that Python knows") from None
    return "gb18030" if found in ("gbk", "gb2312") else {"utf-16": "utf-16-le"}.get(found, found)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _detect(sample: bytes, name: str) -> tuple[str, float]:
    """GB18030 or Big5 with a confidence of at least 0.75, else ``UserError`` with the best guess.

    The confidence is 1 - chaos(best) / chaos(runner-up of another family), chaos being charset-normalizer's measure of
    how unlike a real text the decoded one is; it gives up on an encoding at 0.2, which stands for "no runner-up".
    """
    from charset_normalizer import from_bytes

    found = sorted(
        ((m.chaos, m.encoding) for m in from_bytes(sample, cp_isolation=_CANDIDATES)), key=lambda pair: pair[0]
    )
    best_chaos, best = found[0] if found else (1.0, "unknown")
    family = _FAMILIES.get(best, best)
    runner_up = min([chaos for chaos, other in found if _FAMILIES.get(other, other) != family] + [0.2])
    confidence = max(0.0, 1 - best_chaos / runner_up) if runner_up > 0 else 0.0
    foreign_bytes = sum(1 for byte in sample if byte >= 0x80)
    if family not in _FAMILIES.values() or confidence < _MIN_CONFIDENCE or foreign_bytes < _MIN_FOREIGN_BYTES:
        raise UserError(
            f"{name}: not UTF-8, and its encoding can't be told (best guess {best}, confidence {confidence:.2f} from "
            f"{foreign_bytes} bytes); name it with --encoding, for example --encoding gb18030"
        )
    return family, round(confidence, 2)
