"""A real headless Chromium (Debian's package), driven by its debugging protocol through two pipes: no port, no driver.

``with Browser.start(folder) as browser, browser.page(...) as page`` or the skip that says what is missing. A page has
cookies and storage of its own. What it asks by ``confirm`` is answered with yes. `SCREENSHOTS` names a folder for
pictures that a person looks at.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from tests.waiting import PATIENCE, wait_for

OPTIONS = (
    "--headless=new --no-sandbox --remote-debugging-pipe --no-first-run --disable-gpu --disable-background-networking "
    "--disable-component-update --disable-sync --disable-default-apps --disable-dev-shm-usage --no-proxy-server"
)


_CODES = {"Backspace": 8, "Tab": 9, "Enter": 13, "Escape": 27}
SCREENSHOTS = "MINIMIND_SCREENSHOTS"


class Browser:
    """One Chromium. Commands get their answers in order of their ids; events are kept by session."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium")
        if program is None:
            pytest.skip("Debian's chromium is not installed: apt-get install chromium")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [program, *OPTIONS.split(), f"--user-data-dir={folder}", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *words]
        self._process = subprocess.Popen(
            shell, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in), os.close(theirs_out)
        self._ids, self._writing = itertools.count(1), threading.Lock()
        self._answers: dict[int, Queue[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator[Browser]:
        browser = cls(folder)
        try:
            yield browser
        finally:
            browser._process.terminate()
            browser._process.wait()
            os.close(browser._out)
            browser._reader.join()

    def _read(self) -> None:
        with os.fdopen(self._in, "rb") as pipe:
            rest = b""
            while block := pipe.read1(1 << 20):
                *messages, rest = (rest + block).split(b"\0")
                for message in map(json.loads, messages):
                    if "id" in message:
                        self._answers[message["id"]].put(message)
                        continue
                    self.events.append(message)
                    if message["method"] == "Page.javascriptDialogOpening":  # the page's code waits for it
                        self._send("Page.handleJavaScriptDialog", message["sessionId"], accept=True)

    def _send(self, method: str, session: str | None, **parameters: Any) -> int:
        number = next(self._ids)
        self._answers[number] = Queue()
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        with self._writing:
            while data:
                data = data[os.write(self._out, data) :]
        return number

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, session, **parameters)
        try:
            answer = self._answers[number].get(timeout=PATIENCE)
        except Empty:
            raise AssertionError(f"{method}: no answer") from None
        del self._answers[number]
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: dict[str, Any] = answer["result"]
        return result

    @contextmanager
    def page(
        self, width: int = 1280, height: int = 900, dark: bool = False, language: str = "en-US", phone: bool = False
    ) -> Iterator[Page]:
        context = self.command("Target.createBrowserContext")["browserContextId"]
        target = self.command("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.command(f"{domain}.enable")
        page.command("Emulation.setFocusEmulationEnabled", enabled=True)  # as a window in front
        page.look(width, height, dark, language, phone)
        try:
            yield page
        finally:
            self.command("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.command(method, self.session, **parameters)

    def look(self, width: int, height: int, dark: bool = False, language: str = "en-US", phone: bool = False) -> None:
        """The window's size, colours and language, for pages opened from now on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        agent = self.browser.command("Browser.getVersion")["userAgent"]
        self.command("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=language)

    def open(self, address: str) -> None:
        self.command("Page.navigate", url=address)
        self.wait(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def reload(self) -> None:
        """As by F5."""
        self.value("window.before = true")
        self.command("Page.reload")
        self.wait("!window.before && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def run(self, body: str, *arguments: Any) -> Any:
        """What a function of that body returns."""
        return self.value(f"(function () {{ {body} }}).apply(null, {json.dumps(arguments)})")

    def wait(self, expression: str) -> None:
        wait_for(lambda: self.value(expression))

    def texts(self, css: str) -> list[str]:
        """Of all elements that fit."""
        found: list[str] = self.run("return [...document.querySelectorAll(arguments[0])].map(n => n.innerText)", css)
        return found

    def click(self, css: str) -> None:
        """On the middle of the last element that fits."""
        script = """const node = [...document.querySelectorAll(arguments[0])].pop();
            node.scrollIntoView({block: 'nearest'});
            const box = node.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2];"""
        self._one(css)
        left, top = self.run(script, css)
        self.drag((left, top), (left, top))

    def type(self, css: str, text: str) -> None:
        """Into the last element that fits, in place of what is there."""
        self._one(css)
        self.run("const node = [...document.querySelectorAll(arguments[0])].pop(); node.focus(); node.select();", css)
        self.press("Backspace")
        self.command("Input.insertText", text=text)

    def press(self, *keys: str) -> None:
        """One after the other: Enter, Tab, Escape, Backspace, or a character; ``Shift+Tab``."""
        for name in keys:
            shift, key = name.startswith("Shift+"), name.removeprefix("Shift+")
            about: dict[str, Any] = {"key": key, "modifiers": 8 if shift else 0}
            about |= {"code": key, "windowsVirtualKeyCode": _CODES[key]} if key in _CODES else {"text": key}
            about |= {"text": "\r"} if key == "Enter" else {}
            self.command("Input.dispatchKeyEvent", type="keyDown" if "text" in about else "rawKeyDown", **about)
            self.command("Input.dispatchKeyEvent", type="keyUp", **{**about, "text": ""})

    def _one(self, css: str) -> None:
        self.wait(f"document.querySelector({json.dumps(css)}) !== null")

    def text(self, selector: str = "body") -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        self.mouse("mouseMoved", *end, button="left")
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def picture(self, name: str, whole: bool = False) -> None:
        """Kept where `SCREENSHOTS` says, if it says so; ``whole``: what is scrolled out of sight, too."""
        if folder := os.environ.get(SCREENSHOTS):
            Path(folder).mkdir(parents=True, exist_ok=True)
            data = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(data))

    def _events(self, method: str) -> list[dict[str, Any]]:
        events = [e for e in list(self.browser.events) if e.get("sessionId") == self.session and e["method"] == method]
        return [event["params"] for event in events]

    def errors(self) -> list[str]:
        """Exceptions of the page's code, and what the browser refused or could not load."""
        thrown = [
            e["exceptionDetails"].get("exception", {}).get("description", "?")
            for e in self._events("Runtime.exceptionThrown")
        ]
        logged = [e["entry"]["text"] for e in self._events("Log.entryAdded") if e["entry"]["level"] == "error"]
        return thrown + logged

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]
