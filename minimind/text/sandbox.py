"""A stranger's Jinja template as a program that can only write text, and only so much of it.

Contract: what it writes is what transformers' own environment writes (the same blocks, ``tojson``, ``namespace``,
``raise_exception`` and ``{% generation %}``, transformers 5.24's utils/chat_template_utils.py), or `TemplateFailure`.
Jinja's immutable sandbox keeps it from Python's internals. Beyond that only the methods, filters and functions below
can be called, and every loop, call, joined text and list is paid for from a budget that grows with the conversation, so
neither time nor memory can be taken by a template that repeats or nests without end.

Weakness: filters and methods that no chat template of the models read here uses are refused by name, although
transformers would run them: what isn't metered can't be let in.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from minimind.text.metering import meter

LARGEST = 128 << 10  # characters of a template; the longest of known models have some 30,000
_FREE, _EACH = 1 << 18, 64  # units that any rendering has, and more for each character it is given


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


_PIECE = 32  # units for an object of its own
_FILTERS = _words(
    "abs capitalize count d default dictsort first float indent int items join last length list lower map max min "
    "reject rejectattr replace reverse round safe select selectattr sort string sum title tojson trim unique upper"
)
_TO_TEXT = _words("capitalize indent join lower replace safe string title tojson trim upper")  # of all that is nested
_METHODS: dict[type, frozenset[str]] = {
    str: _words(
        "capitalize count endswith find index isalnum isalpha isdigit islower isnumeric isspace isupper join lower "
        "lstrip partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith "
        "strip title upper"
    ),
    dict: _words("get items keys values"),
    list: _words("count index"),
    tuple: _words("count index"),
    int: frozenset(),
    float: frozenset(),
}
_VALUES = tuple(_METHODS)
_REFUSED = (nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include, nodes.EvalContextModifier)


class TemplateFailure(ValueError):
    """What a template does can't be had: it raises, it wants too much, or it isn't Jinja. The text is the reason."""


class Program:
    """A compiled template. Thread-safe. TemplateFailure for one that can't be compiled or is too long."""

    def __init__(self, source: str) -> None:
        self.source = source
        if len(source) > LARGEST:
            raise TemplateFailure(f"is longer than {LARGEST:,} characters")
        self._environment = _Environment()
        self._environment.allow(len(source))  # constants are computed while it is compiled
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # whatever a stranger's source brings about in parser and compiler
            raise _failure(error) from error
        self.has_marks = self._environment.has_marks

    def render(self, values: Mapping[str, Any], size: int, marks: tuple[str, str] = ("", "")) -> str:
        """The text for ``values``, which have ``size`` characters. Raises TemplateFailure.

        ``marks`` stand around what ``{% generation %}`` encloses.
        """
        environment = self._environment
        environment.allow(size, marks)
        parts = []
        try:
            for part in self._template.root_render_func(self._template.new_context(dict(values))):
                environment.spend(len(part))
                parts.append(part)
        except Exception as error:  # a stranger's program
            raise _failure(error) from error
        return "".join(parts)


@functools.lru_cache(maxsize=16)
def program(source: str) -> Program:
    """The compiled template, from the cache if it has been compiled before."""
    return Program(source)


def _failure(error: Exception) -> TemplateFailure:
    if isinstance(error, TemplateFailure):
        return error
    if isinstance(error, RecursionError):
        return TemplateFailure("nests too deeply")
    if isinstance(error, jinja2.TemplateSyntaxError):
        return TemplateFailure(f"is not Jinja: {error.message} (its line {error.lineno})"[:300])
    return TemplateFailure(f"raises {type(error).__name__}: {error}"[:300])


class _Budget(threading.local):
    """What is left to the rendering of this thread."""

    left = 0
    marks = ("", "")


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, metered."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.budget = _Budget()
        self.has_marks = False
        known = {**self.filters, "tojson": _to_json}
        self.filters = {name: self._metered_filter(known[name], name) for name in _FILTERS}
        self.globals = {
            "range": self.globals["range"],
            "dict": _Dict(),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def allow(self, size: int, marks: tuple[str, str] = ("", "")) -> None:
        """A new budget for this thread."""
        self.budget.left, self.budget.marks = _FREE + _EACH * size, marks

    def spend(self, units: int) -> str:
        """Pay; nothing is written. TemplateFailure when nothing is left."""
        self.budget.left -= units
        if self.budget.left < 0:
            raise TemplateFailure("takes more steps or text than a conversation of this size may")
        return ""

    def paid(self, value: Any) -> Any:
        """The value, its characters and all that it nests paid for."""
        if isinstance(value, str):
            self.spend(1 + len(value))
        else:
            self._weigh([value])
        return value

    def paid_length(self, items: Any) -> Any:
        """What a loop runs over or a slice is cut from. (What can't be counted was made by a filter that was paid.)"""
        self.spend(1 + (len(items) if hasattr(items, "__len__") else 0))
        return items

    def joined(self, *parts: Any) -> str:
        """The ``~`` operator."""
        return "".join([str(self.paid(part)) for part in parts])

    def _weigh(self, stack: list[Any]) -> None:
        while stack:
            item = stack.pop()
            self.spend(1 + len(item) if hasattr(item, "__len__") and not isinstance(item, jinja2.Undefined) else 1)
            if isinstance(item, dict):
                stack.extend(item.keys())
                stack.extend(item.values())
            elif isinstance(item, (list, tuple)):
                stack.extend(item)
            elif isinstance(item, Namespace):
                stack.extend(_attributes(item).values())

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(_REFUSED):
            raise TemplateFailure(f"uses {type(node).__name__.lower()}, which is not let in (its line {node.lineno})")
        meter(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only what `_METHODS` lists, of values; of Jinja's own objects what Jinja allows."""
        allowed = _METHODS.get(type(obj))
        if allowed is None and isinstance(obj, _VALUES):  # safe's Markup, say
            allowed = next(names for kind, names in _METHODS.items() if isinstance(obj, kind))
        return super().is_safe_attribute(obj, attr, value) if allowed is None else attr in allowed

    def wrap_str_format(self, value: Any) -> None:
        """``str.format``, which can pad without end, is not let in."""
        if super().wrap_str_format(value) is not None:
            raise SecurityError("str.format is not let in")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Operators that can make much out of little."""
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not let in")
        if operator == "**" and (abs(left) > 1 << 20 or abs(right) > 64):
            raise SecurityError("powers of large numbers are not let in")
        if operator == "*":
            for one, many in ((left, right), (right, left)):
                if isinstance(one, (str, list, tuple)) and isinstance(many, int):
                    self.spend(max(0, many) * (1 + len(one)))
                elif isinstance(one, int):
                    self.spend(one.bit_length() >> 6)
        result = super().call_binop(context, operator, left, right)
        return result if isinstance(result, (int, float)) else self.paid(result)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Functions and methods; the names are odd because a template's keywords may be any."""
        owner = getattr(__obj, "__self__", None)
        if owner is __self:
            return __obj(*args)
        __self.spend(1)
        if not isinstance(owner, Extension):
            __self._weigh([*args, *kwargs.values()])
        if isinstance(owner, str):
            __self.spend(len(owner) + _growth(__obj.__name__, owner, args))
        return super().call(__context, __obj, *args, **kwargs)

    def _metered_filter(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            given = [arg for arg in args if not isinstance(arg, (Context, EvalContext, jinja2.Environment))]
            if given and name in ("join", "list", "unique", "sort", "reverse") and not hasattr(given[0], "__len__"):
                given[0] = list(given[0])  # what map and select make
                args = (*args[: len(args) - len(given)], *given)
            options = [*given[1:], *kwargs.values()]
            if given and name not in _TO_TEXT:
                self.paid_length(given[0])
            self._weigh(options if name not in _TO_TEXT else [*given[:1], *options])
            if given and isinstance(given[0], str):
                self.spend(_growth(name, given[0], options))
            elif name == "join":
                self.spend(len(given[0]) * max([len(each) for each in options if isinstance(each, str)], default=0))
            return function(*args, **kwargs)

        return metered


def _growth(name: str, text: str, options: Any) -> int:
    """What a method or filter may make of a text beyond its length, in units."""
    if name == "replace" and len(options) > 1:  # by keyword the new text may be named first
        one, other = map(str, options[:2])
        return max(text.count(one) * len(other), text.count(other) * len(one))
    if name in ("split", "rsplit"):
        pieces = text.count(options[0]) if options and isinstance(options[0], str) else len(text) // 2
        return _PIECE * pieces
    if name in ("list", "splitlines"):
        return _PIECE * len(text)
    if name == "join":
        return sum(len(each) for each in options if hasattr(each, "__len__")) * len(text)
    if name == "indent":
        widths = [len(each) if isinstance(each, str) else int(each) for each in options]
        return (text.count("\n") + 1) * max([4, *widths])
    return 0


class _Generation(Extension):
    """``{% generation %}``: the marks that the rendering was given around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        """One block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.has_marks = True  # type: ignore[attr-defined]
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        start, end = self.environment.budget.marks  # type: ignore[attr-defined]
        return f"{start}{caller()}{end}"


class _Dict:
    """``dict(...)`` without the class itself, as transformers has it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As ``dict.fromkeys``."""
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace(...)`` without names that begin with an underscore, as transformers has it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _attributes(namespace: Namespace) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return found


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"{name}: a namespace takes no name with an underscore in front")


def _raise_exception(message: object) -> None:
    raise TemplateFailure(f"refuses it: {message}"[:300])


def _strftime_now(_: object) -> None:
    raise TemplateFailure("writes today's date, so the same data would give other tokens tomorrow (strftime_now)")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """transformers' ``tojson``, which escapes no HTML."""
    if indent is not None and not 0 <= indent <= 8:
        raise SecurityError(f"tojson with indent={indent} is not let in")
    if separators is not None and any(len(each) > 8 for each in separators):
        raise SecurityError("tojson with long separators is not let in")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
