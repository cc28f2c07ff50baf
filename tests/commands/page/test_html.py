"""The page holds everything, loads nothing, and nothing that a run says is markup or code."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from minimind.commands.page.html import SCRIPTS, asset, page
from minimind.commands.page.records import load_records
from tests.commands.page.runs import content, finding, finished, write

HOSTILE = "</script><script>alert(1)</script><!--\u2028\ud800"


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    tags = _Tags(page([load_records(write(tmp_path, finished()))])).tags
    assert {"link", "img", "iframe", "object", "base", "form"}.isdisjoint(tag for tag, _ in tags)
    assert not [attributes for _, attributes in tags if {"src", "href", "onclick", "style"} & attributes.keys()]
    policy = next(attributes["content"] for _, attributes in tags if "http-equiv" in attributes)
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy


def test_the_policy_lets_exactly_the_pages_own_code_run(tmp_path: Path) -> None:
    text = page([load_records(write(tmp_path, finished()))])
    parts = re.findall(r"<(script|style)>(.*?)</\1>", text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for _, part in parts]
    assert len(parts) == 5 and all(f"'sha256-{digest}'" in text for digest in hashes)
    assert "Copyright (c) 2022 Leon Sorokin" in text  # uPlot's licence goes with every copy


def test_what_a_run_says_is_text(tmp_path: Path) -> None:
    run = write(tmp_path / "a<b>", [*finished(), finding(3, HOSTILE, HOSTILE)], f"# {HOSTILE[:-1]}\n")
    (run / "samples.jsonl").write_text(json.dumps({"step": 1, "prompt": HOSTILE, "text": HOSTILE}) + "\n")
    text = page([load_records(run)])
    text.encode()
    assert [tag for tag, _ in _Tags(text).tags].count("script") == 2 + len(SCRIPTS)
    assert "alert(1)</script>" not in text and "<title>a&lt;b&gt;</title>" in text
    (value,) = content(text)["runs"]
    assert value["marks"][0]["message"] == HOSTILE and value["samples"][0]["text"] == HOSTILE


def test_both_languages_have_every_word_that_the_code_asks_for() -> None:
    words = json.loads(asset("words.json"))
    assert words["en"].keys() == words["zh"].keys()
    asked = set(re.findall(r'\bt\("([^"]+)"', asset("page.js"))) | set(
        re.findall(r'\["(chart [^"]+)"', asset("page.js"))
    )
    assert len(asked) > 20 and asked <= words["en"].keys()
    for name, text in words["en"].items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", words["zh"][name])), name
