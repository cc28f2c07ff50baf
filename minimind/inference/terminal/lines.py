"""The lines that a person types: editing and history by readline, and what Ctrl-C and Ctrl-D mean at the prompt.

Contract. The history of all chats is one private file of the user's cache (mode 0600), a JSON string a line, so that a
pasted text of several lines stays one entry. Where the cache can't be used, or Python has no readline, lines are read
without a history, and that is said once. Without a terminal nothing is kept and no prompt is printed.

Known weakness: what was typed is written when the chat ends in order, not when its process is killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType, TracebackType

from minimind.base.display import Shown
from minimind.base.errors import UserError
from minimind.base.files import write_durably
from minimind.base.strict.json_text import parse_json, read_small, reason_of
from minimind.data.store.rooms import default_cache, room

ROOM, FILE = "history", "chat.jsonl"
MOST_ENTRIES = 1000
_MOST_BYTES = 4 << 20
PROMPT = "\n> "


class Lines:
    """Use it as a context: the history is read at its beginning and written at its end."""

    def __init__(self, out: Shown, commands: Collection[str] = (), ask: Callable[[str], str] | None = None) -> None:
        """``commands``: what Tab completes at the beginning of a line. ``ask``: instead of this terminal."""
        self._out, self._commands, self._ask = out, sorted(commands), ask or input
        self._terminal = ask is not None or sys.stdin.isatty()
        self._readline = _readline() if ask is None and self._terminal else None
        self._known = 0
        self._interrupted = False

    def __enter__(self) -> Lines:
        if self._readline is not None:
            _prepare(self._readline, self._commands)
            for entry in self._entries():
                self._readline.add_history(entry)
            self._known = self._readline.get_current_history_length()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._readline is not None:
            self._keep(self._readline)

    def next(self) -> str | None:
        """The next line with something on it; None at the end of input, and at the second Ctrl-C in a row."""
        while True:
            try:
                line = self._ask(PROMPT if self._terminal else "")
            except EOFError:
                self._out.write("\n" if self._terminal else "")
                return None
            except KeyboardInterrupt:
                self._out.write("\n" if self._interrupted else "\n(Ctrl-C again ends)")
                if self._interrupted:
                    return None
                self._interrupted = True
                continue
            self._interrupted = False
            if line.strip():
                return line

    def _entries(self) -> Sequence[str]:
        try:
            text = read_small(room(default_cache(), ROOM), FILE, _MOST_BYTES).decode("utf-8")
            entries = [parse_json(line) for line in text.splitlines()]
        except FileNotFoundError:
            return []
        except UserError as error:
            self._out.write(f"note: no history of earlier chats: {error}\n")
            return []
        except (OSError, ValueError) as error:
            self._out.write(f"note: {default_cache() / ROOM / FILE}: no history: {reason_of(error)}\n")
            return []
        return [entry for entry in entries if isinstance(entry, str) and "\0" not in entry]

    def _keep(self, readline: ModuleType) -> None:
        count = readline.get_current_history_length()
        new = [str(readline.get_history_item(n)) for n in range(self._known + 1, count + 1)]
        if not new:
            return
        kept = [*self._entries(), *new][-MOST_ENTRIES:]  # of other chats, too, that have ended meanwhile
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in kept)
        try:
            write_durably(room(default_cache(), ROOM) / FILE, text, mode=0o600)
        except (OSError, UserError) as error:
            self._out.write(f"note: this chat is not in the history: {error}\n")


def _readline() -> ModuleType | None:
    """The module, which makes ``input`` edit lines from then on; None where this Python was built without it."""
    try:
        import readline
    except ImportError:
        return None
    return readline


def _prepare(readline: ModuleType, commands: Sequence[str]) -> None:
    """Tab completes a command; what is pasted is one entry, whatever line breaks it has (readline from 7.0 on)."""

    def complete(text: str, state: int) -> str | None:
        found = [f"/{name} " for name in commands if f"/{name}".startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    libedit = "libedit" in (readline.__doc__ or "")
    for line in ("bind ^I rl_complete",) if libedit else ("tab: complete", "set enable-bracketed-paste on"):
        readline.parse_and_bind(line)
