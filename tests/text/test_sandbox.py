"""A stranger's template: what it may write, and that nothing else can be had from it."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from minimind.text.sandbox import LARGEST, Program, TemplateFailure, program

VALUES = {"a": "text", "many": ["x", "y"], "deep": {"k": [1, {"n": "ü"}]}, "n": 3, "nothing": None}

ORDINARY = [
    "{{ a }}{{ n }}{{ many }}{{ deep | tojson }}{{ deep | tojson(indent=2) }}",
    "{% for x in many %}{{ loop.index }}{{ x }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}",
    "{% for x in range(5) %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set ns = namespace(k=0) %}{% for x in many %}{% set ns.k = ns.k + 1 %}{% endfor %}{{ ns.k }}",
    "{% macro m(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ m(1) }}{{ m(1, y=a) }}",
    "{% set b %}{{ a }}-{{ n }}{% endset %}{{ b | upper }}{{ 'é' ~ n ~ a }}{{ a + 'b' }}{{ many + [1] }}",
    "{{ a[::-1] }}{{ many[0] }}{{ a.startswith('te') }}{{ 'ex' in a }}{{ a.replace('t', 'TT') }}{{ many | join('+') }}",
    "{{ deep.k[1].n }}{{ deep.items() | list }}{{ missing is defined }}{{ missing }}{{ nothing is none }}",
    "{{ many | map('upper') | list }}{{ many | first }}{{ many | length }}{{ n * 2 ** 3 % 5 }}{{ a * n }}",
    "{{ dict(x=1, y=a).x }}{{ {'k': [a]}.k }}{{ (1, a)[1] }}{{ a if n > 2 else 'no' }}{{ a.split('x') }}",
    "{%- for k, v in deep.items() %}{{ k }}{{ v }}{%- endfor -%}\n  {%- if a %}\n  yes\n  {% endif %}\n end",
]

GREEDY = [
    "{% for x in range(100000) %}{% for y in range(100000) %}{% endfor %}{% endfor %}",
    "{% for x in range(90000) if false %}{% endfor %}" * 40,
    "{{ 'x' * 10 ** 9 }}",
    "{{ ['x'] * 10 ** 9 }}",
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s ~ s %}" * 60,
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s + s %}" * 60,
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60,
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s.replace('x', s) %}" * 9,
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s | replace('', s) %}" * 9,
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s = [s, s, s, s] | join(s) %}" * 30,
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s.join([s, s, s, s]) %}" * 30,
    "{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a }}",
    "{% set a = {} %}" + "{% set a = {'x': a, 'y': a} %}" * 60 + "{{ a | tojson }}",
    "{% set a = [1] %}" + "{% set a = dict(x=a, y=a) %}" * 60 + "{{ a }}",
    "{% set a = (1,) %}" + "{% set a = a + a %}" * 60,
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{% macro a0() %}{% endmacro %}"
    + "".join(
        f"{{% macro a{n + 1}() %}}{{% set x = a{n}() %}}{{% set x = a{n}() %}}{{% endmacro %}}" for n in range(60)
    )
    + "{% set x = a60() %}",
    "{% set s = 'xxxxxxxxxx' %}" + "{% set s = s | replace(new=s, old='x') %}" * 9,
    "{% set s = 'x' * 100000 %}" + "{% set t = s.split('x') %}" * 9,
    "{% macro m() %}" + "y" * 90000 + "{% endmacro %}{% for x in range(90000) %}{% set s = m() %}{% endfor %}",
    "{% for x in range(90000) %}" + "y" * 90000 + "{% endfor %}",
    "{% set s = 'x' * 900000 %}{% for x in range(90000) %}{% if 'y' in s %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 900000 %}{% for x in range(90000) %}{% set t = s[1:] %}{% endfor %}",
    "{% set s = 'x' * 900000 %}{% for x in range(90000) %}{% set t = s.upper() %}{% endfor %}",
    "{{ 2 ** (2 ** 40) }}",
    "{{ a | indent(10 ** 9) }}",
    "{{ deep | tojson(indent=10 ** 9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ a.ljust(10 ** 9) }}{{ a | center(10 ** 9) }}",
    "{{ range(10 ** 9) | list }}",
    "{% for x in many recursive %}{{ loop(many) }}{% endfor %}",
    "x" * (LARGEST + 1),
    "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}",
]

INNER = [
    "{{ a.__class__.__mro__ }}",
    "{{ a['__class__'] }}",
    "{{ ''.__class__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__ }}",
    "{{ lipsum(5) }}",
    "{{ (a | attr('__class__')) }}",
    "{% set ns = namespace(__class__=1) %}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ dict.__class__ }}",
    "{{ self.__init__ }}",
    "{{ many.append(1) }}",
    "{{ deep.update({}) }}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{% autoescape true %}{{ a }}{% endautoescape %}",
    "{{ many | random }}",
    "{{ strftime_now('%Y') }}",
    "{{ a.encode() }}",
    "{{ a.format_map(deep) }}",
    "{{ loop }}{{ caller() }}",
    "{{ 1 / 0 }}",
    "{{ 10 ** 5000 }}",
    "{{ many[99].x }}",
    "{{ 'a' + 1 }}",
    "{{ nosuch() }}",
    "{{ a | nosuchfilter }}",
    "{{ unclosed",
]


@pytest.mark.parametrize("source", ORDINARY)
def test_it_writes_what_jinja_writes(source: str) -> None:
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    plain.filters["tojson"] = program("{{ x }}")._environment.filters["tojson"].__wrapped__
    assert Program(source).render(VALUES, 100) == plain.from_string(source).render(VALUES)


@pytest.mark.parametrize("source", GREEDY)
def test_what_takes_too_much_is_stopped(source: str) -> None:
    with pytest.raises(TemplateFailure, match=r"."):
        Program(source).render(VALUES, 100)


@pytest.mark.parametrize("source", INNER)
def test_what_is_none_of_its_business_is_refused(source: str) -> None:
    """Jinja itself writes nothing for what it hides."""
    try:
        written = Program(source).render(VALUES, 100)
    except TemplateFailure:
        written = ""
    assert written == ""


def test_a_larger_conversation_has_more() -> None:
    source = "{% for x in many %}{{ x.strip() }}{% endfor %}"
    many = {"many": ["word"] * 200_000}
    assert len(program(source).render(many, 800_000)) == 800_000
    with pytest.raises(TemplateFailure, match="than a conversation of this size may"):
        program(source).render(many, 0)


def test_a_compiled_template_is_kept() -> None:
    assert program("{{ a }}") is program("{{ a }}")
    assert program("{% generation %}x{% endgeneration %}").has_marks and not program("x").has_marks
    assert program("a{% generation %}{{ n }}{% endgeneration %}b").render(VALUES, 9, ("[", "]")) == "a[3]b"


def test_threads_have_a_budget_each() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(_: int) -> Any:
        return program("{% for x in range(90000) %}{{ x % 10 }}{% endfor %}").render({}, 9)

    with ThreadPoolExecutor(4) as pool:
        assert len({len(text) for text in pool.map(work, range(8))}) == 1
