"""fetch against a stand-in hub on this machine, through the real huggingface_hub and modelscope, where installed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.data import fetch as module
from minimind.data.fetch import fetch
from tests.waiting import PATIENCE, wait_for

LIBRARIES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}
REPOSITORIES = {"huggingface": "jingyaogong/minimind_dataset", "modelscope": "gongjy/minimind_dataset"}
CONTENT = os.urandom(5 << 20)
FILE = "pretrain_hq.jsonl"


class StandIn(ThreadingHTTPServer):
    """Serves one file the way Hugging Face does; ``stall``: the first download stops after 3 MB and hangs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.index_name, self.digest, self.stall = FILE, hashlib.sha256(CONTENT).hexdigest(), False
        self.ranges: list[str | None] = []
        self.sent: list[object] = []
        self.redirect: str | None = None  # where the first download is sent to
        self.halfway = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: object) -> None:
        return None

    def do_HEAD(self) -> None:
        self._headers(200, len(CONTENT))

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.sent.append(list(getattr(self, "headers", {}).items()))
        return parsed

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            self._json([self._entry()])
            return
        if self.path == "/api/v1/datasets/gongjy/minimind_dataset":
            self._modelscope({"Id": 7, "Type": 1})
            return
        if self.path.startswith("/api/v1/datasets/7/repo/tree?"):
            self._modelscope({"Files": [{"Path": self.server.index_name, "Sha256": self.server.digest}]})
            return
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if (target := self.server.redirect) is not None:
            self.server.redirect = None
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = int(re.findall(r"\d+", asked)[0]) if asked else 0
        self._headers(206 if asked else 200, len(CONTENT) - start)
        if self.server.stall and not asked:
            self.wfile.write(CONTENT[: 3 << 20])
            self.wfile.flush()
            self.server.halfway.set()
            time.sleep(PATIENCE)
            return
        self.wfile.write(CONTENT[start:])

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert self.path.endswith("/paths-info/main")
        self._json([self._entry()] if self.server.index_name in asked else [])

    def _entry(self) -> dict[str, object]:
        lfs = {"oid": self.server.digest, "size": len(CONTENT), "pointerSize": 134}
        return {"type": "file", "path": self.server.index_name, "oid": "0" * 40, "size": len(CONTENT), "lfs": lfs}

    def _modelscope(self, data: object) -> None:
        self._json({"Code": 200, "Success": True, "Message": "", "RequestId": "1", "Data": data})

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self._headers(200, len(body), "application/json")
        self.wfile.write(body)

    def _headers(self, status: int, length: int, kind: str = "application/octet-stream") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Type", kind)
        self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
        self.send_header("X-Linked-Size", str(len(CONTENT)))
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()


@pytest.fixture
def hub() -> Iterator[StandIn]:
    with StandIn() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(params=sorted(LIBRARIES))
def kind(request: pytest.FixtureRequest) -> str:
    """Which hub the stand-in plays; skipped without its library."""
    pytest.importorskip(LIBRARIES[request.param])
    return str(request.param)


def test_a_file_is_fetched_and_kept(hub: StandIn, kind: str, tmp_path: Path) -> None:
    path = fetch("pretrain_hq", tmp_path / "new" / "dir", kind, hub.address)
    assert path == tmp_path / "new" / "dir" / FILE
    assert path.read_bytes() == CONTENT
    fetch("pretrain_hq", tmp_path / "new" / "dir", kind, hub.address)
    assert len(hub.ranges) == 1


def test_a_damaged_local_file_is_fetched_again(hub: StandIn, kind: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(CONTENT[:1000])
    assert fetch("pretrain_hq", tmp_path, kind, hub.address).read_bytes() == CONTENT


def test_a_killed_download_goes_on_where_it_stopped(hub: StandIn, kind: str, tmp_path: Path) -> None:
    hub.stall = True
    script = (
        "from pathlib import Path; from minimind.data.fetch import fetch; "
        f"fetch('pretrain_hq', Path({str(tmp_path)!r}), {kind!r}, {hub.address!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    wait_for(lambda: hub.halfway.is_set() and _partial(tmp_path), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / FILE).exists()
    size = _partial(tmp_path)
    assert size > 0
    assert fetch("pretrain_hq", tmp_path, kind, hub.address).read_bytes() == CONTENT
    assert hub.ranges[-1] == f"bytes={size}-"


def _partial(directory: Path) -> int:
    return max((file.stat().st_size for file in directory.rglob("*.partial")), default=0)


def test_a_wrong_checksum_is_refused_and_removed(hub: StandIn, kind: str, tmp_path: Path) -> None:
    hub.digest = "f" * 64
    with pytest.raises(UserError, match=r"the download is damaged \(SHA-256 .*, not ffffffffffff\)"):
        fetch("pretrain_hq", tmp_path, kind, hub.address)
    assert not (tmp_path / FILE).exists()


def test_a_renamed_file_is_named(hub: StandIn, kind: str, tmp_path: Path) -> None:
    hub.index_name = "pretrain_new.jsonl"
    with pytest.raises(UserError, match=rf"not in {REPOSITORIES[kind]} any more; it holds pretrain_new\.jsonl"):
        fetch("pretrain_hq", tmp_path, kind, hub.address)


def test_no_network_is_one_line(kind: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"{kind} can't be reached or refused .*--hub {(LIBRARIES.keys() - {kind}).pop()}"
    ) as caught:
        fetch("pretrain_hq", tmp_path, kind, "http://127.0.0.1:9")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "http://mirror.example",
        "http://127.0.0.1.evil.example",
        "http://localhost@evil.example",
        "ftp://127.0.0.1/",
        "file:///etc",
        "data:,x",
        "mirror.example",
        "https://",
        "http://[::1",
        "//127.0.0.1",
        "HTTP://10.0.0.1",
    ],
)
def test_an_address_that_is_not_safe_is_refused(
    address: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="https://"):
        fetch("pretrain_hq", tmp_path, kind, address)
    if kind == "huggingface":
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(UserError, match="https://"):
            fetch("pretrain_hq", tmp_path, kind)


def test_no_token_is_sent(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch("pretrain_hq", tmp_path, "huggingface", hub.address)
    assert hub.ranges and "hf_secret" not in str(hub.sent) and "uthorization" not in str(hub.sent)


@pytest.mark.parametrize(
    "target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x", "http://mirror.example/x", "//mirror.example/x"]
)
def test_a_redirect_to_somewhere_unsafe_is_not_followed(hub: StandIn, tmp_path: Path, target: str) -> None:
    hub.redirect = target
    with pytest.raises((UserError, urllib.error.HTTPError)):
        module._resume(f"{hub.address}/file", tmp_path / "file")
    assert not list(tmp_path.iterdir()) and hub.ranges == [None]


def test_a_redirect_within_this_machine_is_followed(hub: StandIn, tmp_path: Path) -> None:
    hub.redirect = f"{hub.address}/there"
    module._resume(f"{hub.address}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    request = urllib.request.Request("https://hub.example/x")
    for target in ("http://127.0.0.1/x", "http://hub.example/x", "ftp://hub.example/x"):
        with pytest.raises(UserError, match="not followed"):
            module._Redirects().redirect_request(request, None, 302, "", {}, target)
    followed = module._Redirects().redirect_request(request, None, 302, "", {}, "https://cdn.example/x")
    assert followed.full_url == "https://cdn.example/x"


def test_wrong_names_and_missing_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such data set; one of pretrain_hq, sft_mini_512"):
        fetch("pretrain", tmp_path)
    with pytest.raises(UserError, match="no such hub; one of huggingface, modelscope"):
        fetch("pretrain_hq", tmp_path, "github")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs huggingface_hub or modelscope: pip install huggingface_hub"):
        fetch("pretrain_hq", tmp_path)
