"""A real headless Chromium, asked over HTTP by the WebDriver protocol: Debian's chromium and chromium-driver."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import PATIENCE

SCREENSHOTS = "MINIMIND_SCREENSHOTS"  # a directory to keep them in
PROGRAMS = ("chromium", "chromedriver")
ENTER = "\ue007"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # WebDriver's name of an element's id
_OPTIONS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server"]


def missing() -> str | None:
    """What is not installed, in words; None if nothing."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {' and no '.join(absent)}: apt-get install chromium chromium-driver" if absent else None


class Page:
    """A window."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client, self._path = client, f"/session/{session}"

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        reply = self._client.request(method, self._path + path, json=body if method == "POST" else None).json()["value"]
        if isinstance(reply, dict) and "error" in reply:
            raise AssertionError(f"{reply['error']}: {reply['message']}")
        return reply

    def open(self, address: str) -> None:
        """Go there."""
        self._ask("POST", "/url", url=address)

    def reload(self) -> None:
        """As by F5."""
        self._ask("POST", "/refresh")

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._ask("POST", "/execute/sync", script=script, args=list(arguments))

    def command(self, name: str, **parameters: Any) -> None:
        """One of Chromium's own."""
        self._ask("POST", "/goog/cdp/execute", cmd=name, params=parameters)

    def look(self, width: int, height: int, *, dark: bool = False, language: str = "en-US") -> None:
        """The window's size, colours and language, for pages opened from now on."""
        mobile = width < 600
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        agent = self.run("return navigator.userAgent")
        self.command("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=language)

    def _find(self, css: str) -> str:
        found = self.until(lambda: self._ask("POST", "/elements", using="css selector", value=css), css)
        identity: str = found[-1][_ELEMENT]
        return identity

    def click(self, css: str) -> None:
        """On the last element that fits."""
        self._ask("POST", f"/element/{self._find(css)}/click")

    def type(self, css: str, text: str) -> None:
        """Into the last element that fits, in place of what is there."""
        element = self._find(css)
        self._ask("POST", f"/element/{element}/clear")
        self._ask("POST", f"/element/{element}/value", text=text)

    def accept(self) -> None:
        """The question that the page asks."""
        self._ask("POST", "/alert/accept")

    def texts(self, css: str) -> list[str]:
        """Of all elements that fit."""
        found: list[str] = self.run("return [...document.querySelectorAll(arguments[0])].map(n => n.innerText)", css)
        return found

    def until(self, condition: Any, what: object = "") -> Any:
        """Its value, once it is true."""
        end = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert time.monotonic() < end, f"did not happen: {what}"
            time.sleep(0.02)
        return value

    def picture(self, name: str) -> None:
        """Kept where `SCREENSHOTS` says, if it says so."""
        if directory := os.environ.get(SCREENSHOTS):
            Path(directory).mkdir(parents=True, exist_ok=True)
            data = base64.b64decode(self._ask("GET", "/screenshot"))
            (Path(directory) / f"{name}.png").write_bytes(data)


@contextmanager
def driver(log: Path) -> Iterator[httpx.Client]:
    """A running chromedriver."""
    process, port = _start(log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def _start(log: Path) -> tuple[subprocess.Popen[str], str]:
    """It ends at once where the free port that it was given for IPv4 is taken for IPv6: then another time."""
    for _ in range(10):
        command = ["chromedriver", "--port=0", f"--log-path={log}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                return process, found[1]
        process.wait()
    raise AssertionError(log.read_text(encoding="utf-8", errors="replace")[-2000:])


@contextmanager
def window(client: httpx.Client, profile: Path) -> Iterator[Page]:
    """Of a Chromium of its own; ``profile``: an empty directory."""
    options = {"args": [*_OPTIONS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
    wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
    session = client.post("/session", json=wanted).json()["value"]
    assert "sessionId" in session, session
    try:
        yield Page(client, session["sessionId"])
    finally:
        client.delete(f"/session/{session['sessionId']}")
