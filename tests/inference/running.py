"""Shared by the tests of the server: an application on a real port, and a stand-in for the model's choice of words."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from minimind.inference.answers import Question, Writer
from minimind.inference.server import listen
from minimind.inference.serving.app import Served, make_app
from minimind.inference.serving.listener import make_server
from minimind.inference.speaker import Speaker
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer
from tests.waiting import PATIENCE

POSITIONS = 100
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello 你好"}]}


class Running:
    """An application on a free port, in a thread."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, **options: Any) -> None:
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        limits = {name: options.pop(name) for name in ("connections", "header_seconds") if name in options}
        self.speaker = Speaker(model, tokenizer, options.pop("stopping", lambda: False))
        about = {name: options.pop(name) for name in ("about", "context") if name in options}
        self.app = make_app(self.speaker, Served("tiny", **about), **options)
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
        self.speaker.close()


_PUSH = Writer.push


class Speech:
    """Puts its words into the model's mouth: a text token by token, over and over if ``forever``, else it ends or, if
    ``fails``, breaks."""

    def __init__(self, tokenizer: Tokenizer, text: str, forever: bool = False, fails: bool = False) -> None:
        self.ids, self.forever, self.fails = tokenizer.encode(text), forever, fails
        self.end = tokenizer.eos_id
        self.asked: list[Question] = []
        self.said = 0

    def __call__(self, writer: Writer) -> int:
        """Instead of the token that was chosen."""
        said = writer.__dict__.setdefault("said", 0)
        if not said:
            self.asked.append(writer.question)
        if said == len(self.ids) and self.fails:
            raise RuntimeError("the machine is on fire")
        if said >= len(self.ids) and not self.forever:
            return self.end
        writer.__dict__["said"] = said + 1
        self.said += 1
        return self.ids[said % len(self.ids)]

    def spoken_by(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every answer's writer, until the test ends."""
        monkeypatch.setattr(Writer, "push", lambda writer, token, logits: _PUSH(writer, self(writer), logits))

    @classmethod
    def put(cls, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, text: str, **how: bool) -> Speech:
        """Into every answer's mouth, until the test ends."""
        speech = cls(tokenizer, text, **how)
        speech.spoken_by(monkeypatch)
        return speech


def content(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1] if event["choices"])
