"""The chat page: what it may load, and, with ``-m browser``, what a person does with it in a real browser.

``MINIMIND_SCREENSHOTS=DIR`` keeps pictures of it for a person to look at.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from minimind.inference.about import About
from minimind.inference.answers import Writer
from minimind.inference.serving.page import FILES, page_paths
from tests.browser import Browser, Page
from tests.inference.running import Running, Speech
from tests.waiting import PATIENCE, wait_for

ABOUT: Any = {
    "knows": "sums of two numbers, capitals, opposites and small stories",
    "examples": ["What is 32+41?", "法国的首都是哪里？", "What is the opposite of hot?"],
}
NASTY = (
    "**bold** <img src=x onerror=document.title='hacked'> [a](javascript:alert(1))\n\n"
    "- one\n- two\n\n```py\n<b>1</b>\n```"
)
HTML = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=|onclick=\"")
LEFT = "const t = document.getElementById('turns'); return t.scrollHeight - t.scrollTop - t.clientHeight"
LONG = "\n\n".join(f"Line {n} of a long story about a river." for n in range(40))


def test_the_page_needs_nothing_else(api: Running) -> None:
    for path in page_paths():
        response = api.client.get(path)
        assert response.status_code == 200 and "default-src 'none'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
        assert "://" not in response.text and "@import" not in response.text
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=|onclick=\"", response.text
        )


def test_every_text_of_the_page_is_there_in_both_languages() -> None:
    files = {file.name: file.read_text(encoding="utf-8") for file in FILES.iterdir()}
    english, chinese = files["texts.js"].split("  zh: {")
    names = set(re.findall(r"([a-z]\w*): ", english)) - {"en"}
    assert names == set(re.findall(r"([a-z]\w*): ", chinese.partition("};")[0]))
    rest = "".join(content for name, content in files.items() if name != "texts.js")
    used = set(re.findall(r"(?:say\(|button\(|data-(?:text|title|placeholder)=)\"(\w+)\"", rest))
    assert used <= names and len(used) > 20


class Held(Speech):
    """Says ``until`` tokens, and the rest when it is told to go on."""

    until = -1

    def __init__(self, *arguments: Any, **how: Any) -> None:
        super().__init__(*arguments, **how)
        self.go = threading.Event()

    def __call__(self, writer: Writer) -> int:
        if self.said == self.until:
            assert self.go.wait(PATIENCE)
        return super().__call__(writer)


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[Running]:
    config = ModelConfig.preset(
        "tiny", vocab_size=330, hidden_size=16, num_hidden_layers=1, head_dim=8, max_position_embeddings=3000
    )
    running = Running(Transformer(config, seed=1).eval(), tokenizer, about=About(**ABOUT))
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser.start(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(server: Running, browser: Browser) -> Iterator[Page]:
    with browser.page(1280, 800) as page:
        page.open(f"http://127.0.0.1:{server.port}/")
        wait_for(lambda: page.texts("#model") == ["tiny"])
        yield page


def send(page: Page, question: str) -> None:
    page.type("#question", question)
    page.press("Enter")


def ask(page: Page, question: str) -> None:
    """And wait for the answer's end."""
    send(page, question)
    wait_for(lambda: page.texts(".user .body")[-1:] == [question])
    done(page)


def done(page: Page) -> None:
    page.wait("document.getElementById('stop').hidden")


@pytest.mark.browser
def test_a_conversation_is_shown_kept_and_listed(
    page: Page, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page.texts("#empty li") == ABOUT["examples"] and ABOUT["knows"] in page.texts("#empty p")[0]
    Speech.put(monkeypatch, tokenizer, NASTY)
    page.click("#empty li:first-child button")
    wait_for(lambda: page.texts(".assistant .tools"))
    for when in ("at once", "after a reload"):
        assert page.texts(".user .body") == [ABOUT["examples"][0]], when
        assert page.texts(".assistant strong") == ["bold"] and page.texts(".assistant li") == ["one", "two"]
        assert page.texts(".assistant pre") == ["<b>1</b>"]
        assert page.run("return document.querySelectorAll('.assistant img, .assistant a, .assistant b').length") == 0
        assert re.search(r"\d+ tokens · [\d.]+ tokens/s", page.texts(".assistant .note")[0])
        assert re.fullmatch(r"\d+ of 3000 tokens", page.texts("#context")[0])
        page.reload()
        wait_for(lambda: page.texts("#model") == ["tiny"])
    assert page.run("return document.title") == "tiny"
    page.click("#new")
    ask(page, "another one")
    assert page.texts("#list .name") == ["another one", ABOUT["examples"][0]]
    page.click("#list li:last-child .name")
    assert page.texts(".user .body") == [ABOUT["examples"][0]]
    page.click("#list li.open .delete")
    wait_for(lambda: page.texts("#list .name") == ["another one"])
    addresses = page.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)")
    assert set(addresses) == {page.run("return location.origin")}


@pytest.mark.browser
def test_stop_regenerate_edit_and_send_again(
    page: Page, server: Running, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Speech.put(monkeypatch, tokenizer, "river ", forever=True)
    page.run("localStorage.settings = JSON.stringify({max_tokens: 2900})")
    send(page, "first")
    wait_for(lambda: "river" in "".join(page.texts(".making .body")))
    page.click("#stop")
    done(page)
    assert "stopped" in page.texts(".assistant .note")[0]
    wait_for(lambda: not server.speaker.batch.writers)
    speech = Speech.put(monkeypatch, tokenizer, "hill")
    page.click(".assistant .tools button:nth-child(2)")
    wait_for(lambda: page.texts(".assistant .body") == ["hill"])
    done(page)
    page.click(".user .tools button:first-child")
    page.type(".edit textarea", "second")
    page.click(".edit .main")
    wait_for(lambda: page.texts(".user .body") == ["second"])
    done(page)
    assert len(speech.asked) == 2 and page.texts(".assistant .body") == ["hill"]


@pytest.mark.browser
def test_an_error_keeps_the_question_and_offers_to_try_again(
    page: Page, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "z" * 4000
    page.run("document.getElementById('question').value = arguments[0]", long)
    page.click("#send")
    wait_for(lambda: page.texts(".error span"))
    (error,) = page.texts(".error span")
    assert "may have at most 2999" in error and page.texts(".user .body") == [long]
    Speech.put(monkeypatch, tokenizer, "hill")
    page.click(".user .tools button:first-child")
    page.type(".edit textarea", "shorter")
    page.click(".edit .main")
    wait_for(lambda: page.texts(".assistant .body") == ["hill"])
    done(page)
    Speech.put(monkeypatch, tokenizer, "half an ans", fails=True)
    send(page, "next")
    wait_for(lambda: page.texts(".error span"))
    assert page.texts(".user .body") == ["shorter", "next"]
    page.picture("error")
    Speech.put(monkeypatch, tokenizer, "whole")
    page.click(".error button")
    wait_for(lambda: page.texts(".assistant .body") == ["hill", "whole"] and not page.texts(".error"))


@pytest.mark.browser
def test_reasoning_is_shown_apart_and_not_sent_again(
    page: Page, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech = Speech.put(monkeypatch, tokenizer, "<think>\nhill? *river*\n</think>\n\nThe river.")
    ask(page, "which")
    assert page.texts(".assistant .body") == ["The river."] and page.texts(".thought summary") == ["Reasoning"]
    page.click(".thought summary")
    assert "hill? *river*" in page.texts(".thought")[0]
    ask(page, "again")
    assert "hill?" not in tokenizer.decode(speech.asked[-1].prompt)
    page.reload()
    wait_for(lambda: page.texts(".thought summary") == ["Reasoning"] * 2)


@pytest.mark.browser
def test_by_the_keyboard_alone(page: Page, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every control is reached by Tab and shows that it is; Escape closes the settings."""
    Speech.put(monkeypatch, tokenizer, "hill")
    page.command("Input.insertText", text="first")  # the question has the focus
    page.press("Enter")
    done(page)
    reached = {"question"}
    for _ in range(30):
        page.press("Tab")
        reached.add(page.run("const n = document.activeElement; return n.id || n.className || n.innerText"))
        outlined = "const n = document.activeElement; return n === document.body || n.matches(':focus-visible')"
        assert page.run(outlined)
    assert {"new", "language", "settings", "send", "Copy", "Regenerate", "Edit", "name", "delete"} <= reached
    page.run("document.getElementById('settings').focus()")
    page.press("Enter")
    page.wait("document.getElementById('options').open")
    page.press("Escape")
    page.wait("!document.getElementById('options').open")
    assert page.run("return document.activeElement.id") == "settings"


@pytest.mark.browser
def test_scrolling_up_while_it_streams_stays(page: Page, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    speech = Held(tokenizer, LONG)
    speech.until = len(speech.ids) * 3 // 4
    speech.spoken_by(monkeypatch)
    page.run("localStorage.settings = JSON.stringify({max_tokens: 2900})")
    send(page, "tell")
    wait_for(lambda: speech.said == speech.until)
    wait_for(lambda: page.run("return document.getElementById('turns').scrollTop") > 100)
    page.run("document.getElementById('turns').scrollTop = 50")
    speech.go.set()
    wait_for(lambda: "Line 39" in page.texts(".assistant .body")[0])
    done(page)
    assert page.run("return document.getElementById('turns').scrollTop") == 50
    page.click("#latest")
    assert (
        page.run("const t = document.getElementById('turns'); return t.scrollHeight - t.scrollTop - t.clientHeight") < 2
    )


SIZES = {"desktop": (1280, 800), "phone": (360, 740)}
SHOWN = {
    "en": "Yes. A river **runs** from the hill to the sea:\n\n1. rain falls,\n2. a stream grows,\n3. it ends.\n\n"
    "```python\nwater = sum(rain)  # each hill has its own stream, and each stream its own name\nprint(water)\n```\n\n"
    "| place | water |\n|---|---|\n| hill | little |\n| sea | `all` |",
    "zh": "会的。河水从小山**流到**大海：\n\n1. 下雨，\n2. 溪水上涨，\n3. 流进大海。\n\n```python\nprint('河水')\n```",
}


@pytest.mark.browser
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("language", SHOWN)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_runs_off_the_edge(
    page: Page, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, size: str, language: str, dark: bool
) -> None:
    Speech.put(monkeypatch, tokenizer, SHOWN[language])
    name = f"{size}-{language}-{'dark' if dark else 'light'}"
    page.look(*SIZES[size], dark=dark, language={"en": "en-US", "zh": "zh-CN"}[language], phone=size == "phone")
    page.reload()
    wait_for(lambda: page.texts("#empty li"))
    page.picture(f"{name}-empty")
    ask(page, {"en": "Does the river run?", "zh": "河水会流吗？"}[language])
    ask(page, {"en": "And a very long question " * 6, "zh": "还有一个很长的问题，" * 12}[language].strip())
    page.picture(f"{name}-chat")
    fits(page, "body *")
    if language == "zh":
        words = " ".join(page.texts("header, nav, .tools, footer, .who"))
        assert not re.search(r"[A-Za-z]{3,}", words.replace("English", "").replace("tiny", "").replace("README", "")), (
            words
        )
    if size == "phone":
        page.click("#menu")
        wait_for(lambda: page.run("return document.getElementById('side').getBoundingClientRect().left") == 0)
        page.picture(f"{name}-menu")
        page.run("document.getElementById('shade').click()")
    page.click("#settings")
    page.picture(f"{name}-settings")
    fits(page, "dialog *")


def fits(page: Page, css: str) -> None:
    """Nothing that is shown stands beyond the window's edges, but what scrolls in a box of its own."""
    script = """
        const inside = n => n.closest('pre, .scroll, #side') !== null;
        return [...document.querySelectorAll(arguments[0])].filter(n => n.checkVisibility() && !inside(n))
            .filter(n => { const r = n.getBoundingClientRect(); return r.right > innerWidth + 1 || r.left < -1; })
            .map(n => n.outerHTML.slice(0, 80)).concat(
            document.documentElement.scrollWidth > innerWidth ? ['the page'] : []);"""
    assert page.run(script, css) == []


def test_every_file_forbids_what_a_browser_would_guess_or_keep(api: Running) -> None:
    wanted = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}
    assert page_paths()[0] == "/" and len(page_paths()) == len(list(FILES.iterdir()))
    for path in page_paths():
        response = api.client.get(path)
        assert {name: response.headers[name] for name in wanted} == wanted
        kind = {"css": "text/css", "js": "text/javascript"}.get(path.rpartition(".")[2], "text/html")
        assert response.headers["content-type"].startswith(kind)
