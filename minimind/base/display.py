"""The one place where text reaches a terminal: control characters are shown there, not sent.

Model output, file names, records and error messages may come from strangers, and a terminal obeys escape sequences:
they move the cursor, set the title, write the clipboard. So C0 (but newline and tab), DEL, C1 and the bidirectional
controls, with which text reads in another order than it is, appear as ``\\x1b`` or ``\\u202e``; the longer form is
valid inside JSON, too (JSON escapes C0 by itself).

Contract. `say` and `Shown` leave results as they are for a file or a pipe; `complain` and `console` are for people and
show always, since what they write often ends on a terminal by way of `tee` or a launcher. No rich markup or
emoji code in a text is interpreted: style is given as Text.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_PICTURES = {
    **{code: f"\\x{code:02x}" for code in range(0x20) if chr(code) not in "\n\t"},
    **{code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *_BIDI, *range(0xD800, 0xE000))},
}


def shown(text: str) -> str:
    """``text`` with control characters and lone surrogates (undecodable bytes of a file name) as escapes."""
    return text.translate(_PICTURES)


class Shown:
    """A stream of text that is `shown` if it is a terminal; what arrives is flushed at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()

    def write(self, text: str) -> None:
        self._stream.write(shown(text) if self._terminal else text)
        self._stream.flush()


def say(text: object, end: str = "\n") -> None:
    """Print a result on stdout, `shown` if that is a terminal."""
    Shown(sys.stdout).write(f"{text}{end}")


def complain(text: object) -> None:
    """Print a line for people on stderr, `shown` always."""
    print(shown(str(text)), file=sys.stderr, flush=True)


def speak_utf8() -> None:
    """Let texts of any language be typed, read and printed whatever the locale; call it first in a process.

    In the locale C, Python takes ASCII for words, file names and output unless its UTF-8 mode is on (PEP 540; not with
    PYTHONUTF8=0): the process then starts over with the mode on, under the same id. An output in another encoding
    that lacks a character gets its escape.
    """
    if sys.getfilesystemencoding() == "ascii" and os.environ.get("PYTHONUTF8") != "1":  # else it was turned off by -X
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or stream.encoding == "ascii"):
            stream.reconfigure(errors="backslashreplace")


def show_tracebacks() -> None:
    """From here on the traceback of an exception that ends the process is written as by `complain`."""
    sys.excepthook = lambda *exception: complain("".join(traceback.format_exception(*exception)).rstrip())


def console(**options: Any) -> Console:
    """A rich console on stdout (or ``file``) for text of any origin."""
    from rich.console import Console
    from rich.segment import Segment

    class ShowingConsole(Console):
        """Shows a string before it is laid out, and what comes in another way when it is written."""

        def render_str(self, text: str, **named: Any) -> Text:
            return super().render_str(shown(text), **named)

        def render(self, *arguments: Any, **named: Any) -> Iterable[Segment]:
            for text, style, control in super().render(*arguments, **named):
                yield Segment(text if control else shown(text), style, control)

    return ShowingConsole(**{"highlight": False, "markup": False, "emoji": False, **options})
