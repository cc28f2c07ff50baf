"""Shared by the tests of the server: an application on a real port, and a stand-in for `generate`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

from minimind.inference.app import make_app
from minimind.inference.listener import make_server
from minimind.inference.sampling import Sampling
from minimind.inference.server import listen
from minimind.text.tokenizer import Tokenizer
from tests.waiting import PATIENCE

POSITIONS = 100
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello 你好"}]}


class Running:
    """An application on a free port, in a thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        limits = {name: options.pop(name) for name in ("connections", "header_seconds") if name in options}
        self.app = make_app(*args, **options)
        self.server = make_server(self.app, **limits)
        self.thread = threading.Thread(target=self.server.run, args=([listener],), daemon=True)
        self.thread.start()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE, trust_env=False)

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[Any]:
        """The data of a stream's events; what is not JSON as it is."""
        with self.client.stream("POST", path, json={"stream": True, **body}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        return [json.loads(item) if item.startswith("{") else item for item in data]

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(timeout=PATIENCE)
        assert not self.thread.is_alive()


class Speech:
    """Stands in for `generate`: says a text token by token, over and over if ``forever``, or fails at the end."""

    def __init__(self, tokenizer: Tokenizer, text: str, forever: bool = False, fails: bool = False) -> None:
        self.ids, self.forever, self.fails = tokenizer.encode(text), forever, fails
        self.calls: list[dict[str, Any]] = []
        self.said = self.active = self.most_active = 0

    def __call__(self, model: Any, prompt: list[int], sampling: Sampling, **options: Any) -> Iterator[int]:
        self.calls.append({"prompt": prompt, **vars(sampling), **options})
        self.active += 1
        self.most_active = max(self.active, self.most_active)
        try:
            while True:
                for token in self.ids[: sampling.max_new_tokens]:
                    self.said += 1
                    time.sleep(0.002)
                    yield token
                if not self.forever:
                    break
            if self.fails:
                raise RuntimeError("the machine is on fire")
        finally:
            self.active -= 1


def content(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1] if event["choices"])
