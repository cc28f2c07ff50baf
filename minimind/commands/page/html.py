"""The page itself: one HTML text that holds its style, its code, its words in two languages and the runs.

Contract. Everything that comes from a run stands in one JSON text, in a script element that no browser runs and with
no ``<`` in it; the code puts it on the page as text, never as markup. A policy in the page's head lets exactly the code
and style of this file run, and nothing be loaded from anywhere (`connect-src 'self'` where the page is served and asks
for more). Curves are drawn by uPlot 1.6.32 (assets/uPlot.LICENSE: MIT; npm's file as it is), inside the page, too.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from minimind.commands.page.payload import compared, whole
from minimind.commands.page.records import RunRecords

MARK = '<p class="sub">MiniMind on DeepSpeed</p>'  # by which a page of ours is known
WITHOUT_SCRIPTS = "The curves are drawn by JavaScript, which is in this page. 曲线由本页内的 JavaScript 绘制。"
STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = ("uPlot.iife.min.js", "curves.js", "page.js")
_ASSETS = Path(__file__).with_name("assets")


@cache
def asset(name: str) -> str:
    """One of the files that the page is made of. uPlot comes with its licence, as that demands of every copy."""
    text = (_ASSETS / name).read_text(encoding="utf-8").strip()
    return f"/*!\n{asset('uPlot.LICENSE')}\n*/\n{text}" if name.startswith("uPlot.iife") else text


def page(runs: Sequence[RunRecords], live: bool = False) -> str:
    """The whole page. ``live``: it asks the server that it came from for what is new."""
    values = whole(runs)
    title = _escaped(", ".join(value["label"] for value in values))
    content = {"live": live, "runs": values, "differences": compared(values)}
    styles = "".join(f"<style>{asset(name)}</style>" for name in STYLES)
    scripts = "".join(f"<script>{asset(name)}</script>" for name in SCRIPTS)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(live)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>{styles}</head><body><header><div><h1>{title}</h1>{MARK}</div></header>"
        f"<noscript>{WITHOUT_SCRIPTS}</noscript>"
        f"<main></main>{_data('words', json.loads(asset('words.json')))}{_data('runs', content)}{scripts}"
        "</body></html>\n"
    )


def policy(live: bool) -> str:
    """The Content-Security-Policy: the code and style of the page by their hashes, and nothing else."""
    parts = {
        "default-src": "'none'",
        "script-src": " ".join(_hash(asset(name)) for name in SCRIPTS),
        "style-src": " ".join(_hash(asset(name)) for name in STYLES),
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(name: str, value: Any) -> str:
    """A JSON text in an element that is no code; ASCII, so that lone surrogates and line separators are no matter."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _escaped(text: str) -> str:
    return html.escape(text).encode("utf-8", "replace").decode()
