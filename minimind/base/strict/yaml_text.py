"""YAML as we read it everywhere: plain values, in bounded size and depth, without aliases.

Contract. A file of some kilobytes whose aliases stand for each other expands to gigabytes, so aliases are refused
wherever they stand, and merge keys with them; nothing that we write has any. Tags build plain values only (PyYAML's
SafeLoader). What is wrong is a ``ValueError`` whose text begins with ``:line:column: `` where YAML knows a place,
``: `` elsewhere, to be put after the file's name.

Known weakness: PyYAML's pure Python parser takes about two seconds for the largest text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from minimind.base.strict.json_text import MAX_DEPTH, size

MAX_BYTES = 256 << 10
# What SafeLoader's constructors raise for a value that its tag does not fit (!!int "", !!bool x, 2001-13-01).
_MISFITS = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError)


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads ``1e-3`` as a number (PyYAML follows YAML 1.1, where it is a string), and no aliases."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"the alias *{event.anchor} is not read: write the value out", event.start_mark
            )
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested more than {MAX_DEPTH} deep", mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and not _is_unicode(node.value):
            raise yaml.composer.ComposerError(None, None, "a lone surrogate or a NUL: no text", node.start_mark)
        self.depth -= 1
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" or character == "\0" for character in text)


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """(value, node with the places of its keys) of a YAML text. Raises ValueError with place and reason."""
    if len(text) > MAX_BYTES:
        raise ValueError(f": larger than {size(MAX_BYTES)}, which no file of this kind is")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return (None if root is None else loader.construct_document(root)), root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ValueError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(f": not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ValueError(": not valid YAML: nested too deeply") from None
    except _MISFITS as error:
        reason = str(error).split("\n")[0][:100]
        raise ValueError(f": not valid YAML: a value does not fit its type ({reason})") from None
