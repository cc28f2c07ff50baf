"""A real headless Chromium (Debian's package), driven by its debugging protocol through two pipes: no port, no driver.

``with Browser.start(folder) as browser, browser.page(...) as page`` or the skip that says what is missing.
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
        self._ids = itertools.count(1)
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
                    else:
                        self.events.append(message)

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = Queue()
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
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
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.command(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.command("Emulation.setEmulatedMedia", features=[scheme])
        page.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        agent = self.command("Browser.getVersion")["userAgent"]
        page.command("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=language)
        try:
            yield page
        finally:
            self.command("Target.closeTarget", targetId=target)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.command(method, self.session, **parameters)

    def open(self, address: str) -> None:
        self.command("Page.navigate", url=address)
        self.wait(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        wait_for(lambda: self.value(expression))

    def text(self, selector: str = "body") -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        self.mouse("mouseMoved", *end, button="left")
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def shot(self, path: Path, whole: bool = False) -> None:
        """A picture for a person to look at."""
        data = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

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
