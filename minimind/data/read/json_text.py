"""JSON text -> values: one line at a time, or a file of values and lists that run over lines, in bounded
memory.

JSON is read as RFC 8259. What Python takes beside it is an error of the record that holds it, at any depth: NaN and
Infinity, a key that appears twice in one object (the last value would be kept without a word), an integer of more
digits than Python converts.

Known weakness: after a syntax error inside a list there is no next line to go on from, so the file is
refused.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from minimind.base.errors import UserError
from minimind.data.read import charsets, streams
from minimind.data.read.streams import Head

_WHITESPACE = " \t\r\n\ufeff"  # a byte-order mark stands in the middle where two files were joined
_MAX_DIGITS = 4300  # of an integer: Python's own limit, which may be switched off
_TRUNCATED = "; is the file truncated?"


class Value(NamedTuple):
    """One value and the line it starts on, or ``error`` (a reason) with the start of its text.

    ``element`` counts from 1 in a list of which several elements begin on one line; else it is 0.
    """

    value: object
    line: int
    error: str | None = None
    excerpt: str = ""
    element: int = 0


class JsonParser:
    """JSON text -> value; every failure is a ``ValueError`` whose text is a reason. One instance per thread."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        hooks = {"object_pairs_hook": self._object, "parse_constant": self._constant}
        self._decoder = json.JSONDecoder(**hooks)  # type: ignore[arg-type]
        self._patient = json.JSONDecoder(**hooks, parse_int=self._integer)  # type: ignore[arg-type]

    def parse(self, text: str) -> object:
        value = self.shape(text)
        self.refuse_faults()
        return value

    def shape(self, text: str) -> object:
        """As ``parse``, but takes values with NaN, double keys and huge integers."""
        try:
            value, end = self.parse_from(text, _skipped(text, 0))
            if (end := _skipped(text, end)) != len(text):
                raise json.JSONDecodeError("Extra data", text, end)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return value

    def parse_from(self, text: str, start: int) -> tuple[object, int]:
        """(value, end) of the value that begins at ``start``; raises ``JSONDecodeError`` or ``RecursionError``."""
        self._faults.clear()
        try:
            return self._decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer over Python's limit: read on to where the value ends
            self._faults.clear()
            return self._patient.raw_decode(text, start)

    def refuse_faults(self) -> None:
        if self._faults:
            fault = self._faults[0]
            self._faults.clear()
            raise ValueError(fault)

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen: set[str] = set()
            key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._faults.append(f"key {key[:80]!r} appears twice in one object")
        return value

    def _constant(self, name: str) -> None:
        self._faults.append(f"not JSON: {name} is no number (write null)")

    def _integer(self, digits: str) -> int:
        if len(digits) <= _MAX_DIGITS:
            return int(digits)
        self._faults.append(f"an integer of {len(digits):,} digits; the limit is {_MAX_DIGITS:,}")
        return 0


def _skipped(text: str, start: int) -> int:
    """The position after white space."""
    while start < len(text) and text[start] in _WHITESPACE:
        start += 1
    return start


def json_values(head: Head) -> Iterator[Value]:
    """Elements of top-level lists, and top-level values that are no lists, however the file is broken into lines."""
    text = _Text(head)
    parser, in_list, need_comma = JsonParser(), False, False
    index, last_line = 0, 0  # of the element, and where the one before it (or the bracket) stands
    while (character := text.peek()) or in_list:
        if not in_list and character == "[":
            index, last_line = 0, text.line
            text.skip(1)
            in_list, need_comma = True, False
        elif in_list and character == "]":
            text.skip(1)
            in_list = False
        elif in_list and need_comma:
            if character != ",":
                text.fail(f"expected , or ] after a list element{_TRUNCATED if not character else ''}")
            text.skip(1)
            need_comma = False
            if text.peek() in ("]", ""):
                text.fail("trailing comma before ]" if text.peek() else f"the list is never closed{_TRUNCATED}")
        else:
            value = text.value(parser)
            index += 1
            yield value._replace(element=index) if in_list and value.line == last_line else value
            need_comma, last_line = True, value.line


class _Text:
    """The file as characters with a moving position, for values that run over lines. Holds one value and one block."""

    def __init__(self, head: Head) -> None:
        self._name, self._newline = head.name, head.line_end.decode()
        self._blocks = streams.blocks(head)
        # A bad byte spoils its record, not the file.
        self._decoder = codecs.getincrementaldecoder(charsets.line_encoding(head.encoding))(charsets.ESCAPE)
        self._buffer, self._at, self._line, self._column, self._ended = "", 0, 1, 1, False

    @property
    def line(self) -> int:
        """Of the position."""
        return self._line

    def peek(self) -> str:
        """The next character that is not white space; "" at the end."""
        while True:
            while self._at < len(self._buffer):
                if (character := self._buffer[self._at]) not in _WHITESPACE:
                    return character
                self.skip(1)
            if not self._more():
                return ""

    def skip(self, count: int) -> None:
        self._line, self._column = self._where(self._at + count)
        self._at += count

    def value(self, parser: JsonParser) -> Value:
        """The value at the position. Raises ``UserError`` with file:line:column for bad JSON."""
        line = self._line
        while True:
            try:
                value, end = parser.parse_from(self._buffer, self._at)
                if end == len(self._buffer) and self._more():  # a number may go on
                    continue
                break
            except json.JSONDecodeError as error:
                if self._more():
                    continue
                comma = error.msg == "Expecting value" and self._buffer[error.pos : error.pos + 1] in ("]", "}")
                self.fail("trailing comma before a closing bracket" if comma else error.msg, error.pos)
            except RecursionError:
                self.fail("nested too deeply")
        excerpt, size = self._buffer[self._at : min(end, self._at + 2000)], end - self._at
        self.skip(size)
        if size > streams.MAX_RECORD_BYTES:
            return Value(None, line, streams.too_long(size), excerpt)
        try:
            parser.refuse_faults()
        except ValueError as error:
            return Value(None, line, str(error), excerpt)
        return Value(value, line)

    def fail(self, reason: str, position: int | None = None) -> NoReturn:
        line, column = self._where(self._at if position is None else position)
        raise UserError(f"{self._name}:{line}:{column}: not JSON: {reason}")

    def _more(self) -> bool:
        """Read on, about as much as is held, so that a long value is parsed a logarithmic number of times.

        A value above the limit for records is read to its end, to be rejected alone; above twice that it ends the file.
        """
        if self._ended:
            return False
        parts, size = [self._buffer[self._at :]], 0
        if len(parts[0]) > 2 * streams.MAX_RECORD_BYTES:
            limit = f"{2 * streams.MAX_RECORD_BYTES >> 20} MiB"
            raise UserError(f"{self._name}:{self._line}: one value is longer than {limit}; is a bracket missing?")
        while size <= min(len(parts[0]), streams.MAX_RECORD_BYTES // 2) and not self._ended:
            block = next(self._blocks, b"")
            self._ended = not block
            parts.append(self._decoder.decode(block, final=self._ended))
            size += len(parts[-1])
        if size:  # else leave the buffer as it is: the position of an error refers to it
            self._buffer, self._at = "".join(parts), 0
        return size > 0

    def _where(self, position: int) -> tuple[int, int]:
        newlines = self._buffer.count(self._newline, self._at, position)
        if not newlines:
            return self._line, self._column + position - self._at
        return self._line + newlines, position - self._buffer.rfind(self._newline, self._at, position)
