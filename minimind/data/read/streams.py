"""Files as people have them -> blocks and lines of UTF-8 bytes: compression, encodings, line ends, and what is
no data at all.

Contract: a file is judged by its first mebibyte (after decompression) and then read in blocks; memory is
bounded by one block plus one line of at most ``MAX_RECORD_BYTES``. Lines end at LF, CRLF, or (in a file
without any LF in its first mebibyte) CR; never at U+2028, U+0085 or a form feed. What can't be data (a Git
LFS pointer, an HTML page, zero bytes, a truncated archive, a dangling link) raises ``UserError`` that names
it.

Known weakness: a file that starts with a mebibyte of pure ASCII and goes on in GBK is read as UTF-8, and each
of its later lines is a bad line that says so.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from minimind.base.errors import UserError
from minimind.data.read.charsets import ESCAPE, find_encoding, line_encoding, to_utf8
from minimind.data.read.remote import Remote

BLOCK_BYTES = 1 << 18
HEAD_BYTES = 1 << 20
MAX_RECORD_BYTES = 32 << 20
# An archive above this size that grew by more than this factor holds nothing but repetitions: text shrinks by 3 to 20.
BOMB_BYTES, BOMB_FACTOR = 256 << 20, 250

_COMPRESSED = (".gz", ".zst", ".xz", ".lzma", ".bz2")
_COMPRESSION = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x5d\x00\x00", "lzma"),
    *((b"BZh%d1AY&" % level, "bzip2") for level in range(1, 10)),
    *((b"BZh%d\x17rE8" % level, "bzip2") for level in range(1, 10)),  # of nothing
)
_PAGE = "an HTML page, not data; the download probably ended on an error or login page"
_UNPACK = "unpack it and name the files inside"
_NOT_DATA = (  # what a file begins with, in lower case
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the data; fetch it with `git lfs pull`, or download the file itself",
    ),
    (b"<!doctype html", _PAGE),
    (b"<html", _PAGE),
    (b"<?xml", "an XML document, not data; the download probably ended on an error page"),
    (b"<doc>", '<doc> markup, not plain text; write each document as a JSON line, {"text": ...}'),
    (b"<doc ", "WikiExtractor's <doc> markup, not plain text; run it again with --json"),
    *((b"pk" + mark, f"a zip archive; {_UNPACK}") for mark in (b"\x03\x04", b"\x05\x06", b"\x07\x08")),
    *((mark, f"an archive within an archive; {_UNPACK}") for mark in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zxz\0")),
    (b"bzh91ay&sy", f"an archive within an archive; {_UNPACK}"),
    (b"7z\xbc\xaf", f"a 7z archive; {_UNPACK}"),
    (b"rar!\x1a\x07", f"a RAR archive; {_UNPACK}"),
    (b"\x04\x22m\x18", f"an lz4 archive; {_UNPACK} (lz4 -d)"),
    (b"\x02\x21l\x18", f"an lz4 archive; {_UNPACK} (lz4 -d)"),
    (b"\xff\x06\x00\x00snappy", f"a Snappy archive; {_UNPACK}"),
    (b"\x1f\x9d", f"a .Z archive; {_UNPACK} (uncompress)"),
    (b"fea1", "a Feather file of version 1; write it again as Parquet"),
    (b"obj\x01", "an Avro file; convert it to Parquet"),
    (b"sqlite format 3", "an SQLite database; export its rows as JSON Lines"),
    (b"\x93numpy", "a NumPy array; write its texts as JSON Lines"),
    (b"%pdf", "a PDF; extract its text first"),
)


@dataclass(frozen=True)
class Head:
    """What the start of a file says about the whole: how to decompress, decode and split it.

    ``text`` is the decompressed start without its byte-order mark, still in ``encoding``; ``complete`` says that this
    is all of the file. ``confidence`` is 1.0 for UTF-8 and byte-order marks, else the detector's (see docs/data.md).
    """

    path: Path | Remote
    name: str
    compression: str | None
    encoding: str
    confidence: float
    mark_bytes: int
    text: bytes
    complete: bool
    line_end: bytes = b"\n"

    @property
    def table(self) -> str | None:
        """``parquet`` or ``arrow`` (a file or a stream of Arrow's own format), by the first bytes; else None."""
        return _table(self.text)


def inspect(path: Path | Remote, name: str | None = None, encoding: str | None = None) -> Head:
    """Read the first mebibyte of ``path`` and decide how to read the rest; ``name`` is what messages call it."""
    name = name or str(path)
    with open_bytes(path, name) as stream:
        compression = stream.compression
        raw = stream.read_exactly(HEAD_BYTES + 1)
    complete, raw = len(raw) <= HEAD_BYTES, raw[:HEAD_BYTES]
    if not raw:
        raise UserError(f"{name}: holds no record (0 bytes); was the download or the disk full?")
    _refuse_non_data(raw, name)
    if _table(raw):
        if isinstance(path, Remote):
            raise UserError(f"{name}: a table, which can't be read as it arrives; fetch it without --stream")
        return Head(
            path, name, compression, encoding="utf-8", confidence=1.0, mark_bytes=0, text=raw, complete=complete
        )
    found, confidence, mark = find_encoding(raw, complete, name, encoding)
    text = b"".join(to_utf8([raw[mark:]], found, name, final=False))
    line_end = b"\r" if b"\r" in text and b"\n" not in text else b"\n"
    return Head(
        path,
        name,
        compression,
        encoding=found,
        confidence=confidence,
        mark_bytes=mark,
        text=text,
        complete=complete,
        line_end=line_end,
    )


def blocks(head: Head) -> Iterator[bytes]:
    """The whole file decompressed, without its mark; UTF-16/32 recoded to UTF-8, other encodings left to ``decode``."""
    with open_bytes(head.path, head.name) as stream:
        stream.read_exactly(head.mark_bytes)
        raw = iter(lambda: stream.read(BLOCK_BYTES), b"")
        yield from to_utf8(raw, head.encoding, head.name)


def line_batches(head: Head) -> Iterator[list[bytes | int]]:
    """The file's lines without their ends, a block at a time. One over ``MAX_RECORD_BYTES`` comes as its length."""
    end, max_line = head.line_end, MAX_RECORD_BYTES
    rest: list[bytes] = []  # parts of the unfinished line, ``held`` bytes; ``lost``: bytes of it already dropped
    held = lost = 0
    for block in blocks(head):
        parts = block.split(end)
        if len(parts) > 1:
            first: bytes | int = lost + held + len(parts[0]) if lost else b"".join([*rest, parts[0]])
            yield [_strip(line, max_line) for line in (first, *parts[1:-1])]
            rest, held, lost = [], 0, 0
        rest.append(parts[-1])
        held += len(parts[-1])
        if held > max_line:
            rest, held, lost = [], 0, lost + held
    if held or lost:
        yield [_strip(lost + held if lost else b"".join(rest), max_line)]


def text_lines(head: Head) -> Iterator[tuple[int, str | int]]:
    """(number, line) as text, bad bytes as lone surrogates; a line that is too long as its length."""
    number = 0
    encoding = line_encoding(head.encoding)
    for lines in line_batches(head):
        for line in lines:
            number += 1
            if isinstance(line, int):
                yield number, line
            else:
                yield number, without_mark(line.decode(encoding, ESCAPE)).replace("\r", "\n")


def without_mark(line: str) -> str:
    """The line without a byte-order mark at its start, which a file has in its middle where two were joined."""
    return line.removeprefix("\ufeff")


def suffix(name: str) -> str:
    """The file type in a name, in lower case: ``.csv`` of ``A.CSV.gz``."""
    path = Path(name)
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _COMPRESSED else path.suffix.lower()


class ByteStream:
    """A file's decompressed bytes; every failure of the archive becomes a ``UserError`` that names the file."""

    def __init__(self, raw: IO[bytes], name: str, compression: str | None, size: int) -> None:
        self.compression, self._name, self._raw = compression, name, raw
        self._limit = max(BOMB_BYTES, BOMB_FACTOR * size) if compression else 0
        self._given = 0
        self._reader = _decompressed(raw, compression, name)

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; b"" at the end."""
        try:
            data: bytes = self._reader.read(size)
        except EOFError:
            raise UserError(
                f"{self._name}: the {self.compression} archive is truncated; copy or download it again"
            ) from None
        except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, ValueError) as error:
            raise UserError(f"{self._name}: the {self.compression} archive is damaged ({error})") from None
        except MemoryError:
            raise UserError(f"{self._name}: the {self.compression} archive needs more memory than there is") from None
        except OSError as error:
            if error.errno is None:  # bz2 has no error of its own
                raise UserError(f"{self._name}: the {self.compression} archive is damaged ({error})") from None
            raise UserError(f"{self._name}: can't be read: {error.strerror or error}") from None
        self._given += len(data)
        if self._limit and self._given > self._limit:
            raise UserError(
                f"{self._name}: the {self.compression} archive grows to more than {BOMB_FACTOR} times its size; "
                "unpack it yourself if that is meant"
            )
        return data

    def read_exactly(self, size: int) -> bytes:
        """``size`` bytes, or fewer only at the end of the file."""
        parts, missing = [], size
        while missing > 0 and (part := self.read(min(missing, BLOCK_BYTES))):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def open_bytes(path: Path | Remote, name: str) -> ByteStream:
    """Open ``path`` for reading, decompressing by its first bytes (not by its suffix)."""
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        if isinstance(path, Path) and path.is_symlink():
            raise UserError(f"{name}: a symlink to {path.readlink()}, which does not exist") from None
        raise UserError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{name}: a directory, not a file") from None
    except OSError as error:
        raise UserError(f"{name}: can't be read: {error.strerror or error}") from None
    magic = raw.peek(8)
    size = path.size if isinstance(path, Remote) else os.fstat(raw.fileno()).st_size
    return ByteStream(raw, name, next((kind for start, kind in _COMPRESSION if magic.startswith(start)), None), size)


def _decompressed(raw: IO[bytes], compression: str | None, name: str) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression in ("xz", "lzma"):
        return lzma.LZMAFile(raw)
    if compression == "bzip2":
        return bz2.BZ2File(raw)
    if compression == "zstd":
        return io.BufferedReader(_ZstdReader(raw, name), BLOCK_BYTES)
    return raw


class _ZstdReader(io.RawIOBase):
    """zstd frames -> bytes. Not ``stream_reader``: that one ends a truncated file as if it were complete."""

    def __init__(self, raw: IO[bytes], name: str) -> None:
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{name}: zstd needs the zstandard package: pip install zstandard") from None
        self._raw, self._library, self._name = raw, zstandard, name
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready and self._more():
            pass
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _more(self) -> bool:
        data = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
        data = data or self._raw.read(1 << 10)  # small: a block of 4 bytes may hold 128 KiB, so 1 KiB at most 32 MiB
        if not data:
            if self._frame is not None and not self._frame.eof:
                raise EOFError
            return False
        if self._frame is None or self._frame.eof:
            self._frame = self._library.ZstdDecompressor().decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(data))
        except self._library.ZstdError as error:
            raise UserError(f"{self._name}: the zstd archive is damaged ({error})") from None
        return True


def too_long(size: int) -> str:
    """The reason why a record of ``size`` bytes is rejected."""
    return f"{size:,} bytes in one record; the limit is {MAX_RECORD_BYTES >> 20} MiB"


def _table(start: bytes) -> str | None:
    if start.startswith(b"PAR1"):
        return "parquet"
    # A stream begins with the mark of a message and the size of its first one, the schema.
    stream = start.startswith(b"\xff\xff\xff\xff") and start[7:8] == b"\0"
    return "arrow" if stream or start.startswith(b"ARROW1\0\0") else None


def _refuse_non_data(raw: bytes, name: str) -> None:
    start = raw.lstrip(codecs.BOM_UTF8 + b" \t\r\n")[:2048].lower()
    if start.startswith(b"<!--") and b"<html" in start:  # a page that opens with a comment
        start = b"<html"
    for mark, what in _NOT_DATA:
        if start.startswith(mark):
            raise UserError(f"{name}: {what}")
    if raw[257:262] == b"ustar":
        raise UserError(f"{name}: a tar archive; unpack it and name the files inside")


def _strip(line: bytes | int, max_line: int) -> bytes | int:
    if isinstance(line, int) or len(line) > max_line:
        return line if isinstance(line, int) else len(line)
    return line[:-1] if line.endswith(b"\r") else line
