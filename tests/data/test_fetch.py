"""fetch against a stand-in hub on this machine, through the real huggingface_hub and modelscope, where installed."""

from __future__ import annotations

import gzip
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
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.cli import run
from minimind.data import fetch as module
from minimind.data import http
from minimind.data.fetch import fetch, remote
from minimind.data.store.prepare import prepare
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.waiting import PATIENCE, wait_for

LIBRARIES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}
REPOSITORIES = {"huggingface": "jingyaogong/minimind_dataset", "modelscope": "gongjy/minimind_dataset"}
CONTENT = os.urandom(5 << 20)
FILE, COMMIT = "pretrain_t2t_mini.jsonl", "c" * 40


class StandIn(ThreadingHTTPServer):
    """Serves one file the way Hugging Face does.

    ``stall``: the first download stops after 3 MB and hangs; ``cut``: each connection ends after so many bytes;
    ``deaf``: ranges are ignored; ``length``: so many bytes more than there are is what it says.
    """

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle is part of the game."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.index_name, self.content, self.lfs = FILE, CONTENT, True
        self.digest, self.stall = hashlib.sha256(CONTENT).hexdigest(), False
        self.cut: int | None = None
        self.deaf, self.length = False, 0
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
        if re.match(r"/api/datasets/jingyaogong/minimind_dataset(/revision/|$)", self.path):
            self._json({"id": "jingyaogong/minimind_dataset", "sha": COMMIT})
            return
        if "/tree/" in self.path:
            self._json([self._entry()])
            return
        if self.path == "/api/v1/datasets/gongjy/minimind_dataset":
            self._modelscope({"Id": 7, "Type": 1})
            return
        if self.path.startswith("/api/v1/datasets/7/repo/tree?"):
            server = self.server
            file = {"Path": server.index_name, "Sha256": server.digest, "Size": len(server.content)}
            self._modelscope({"Files": [file]})
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
        start = int(re.findall(r"\d+", asked)[0]) if asked and not self.server.deaf else 0
        content = self.server.content
        self._headers(206 if start else 200, len(content) - start, start=start)
        if self.server.stall and not asked:
            self.wfile.write(content[: 3 << 20])
            self.wfile.flush()
            self.server.halfway.set()
            time.sleep(PATIENCE)
            return
        self.wfile.write(content[start:][: self.server.cut])
        self.close_connection = True

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert self.path.endswith(f"/paths-info/{COMMIT}")
        self._json([self._entry()] if self.server.index_name in asked else [])

    def _entry(self) -> dict[str, object]:
        server, size = self.server, len(self.server.content)
        lfs = {"lfs": {"oid": server.digest, "size": size, "pointerSize": 134}} if server.lfs else {}
        return {"type": "file", "path": server.index_name, "oid": server.digest, "size": size, **lfs}

    def _modelscope(self, data: object) -> None:
        self._json({"Code": 200, "Success": True, "Message": "", "RequestId": "1", "Data": data})

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.server.length, said = 0, self.server.length
        self._headers(200, len(body), "application/json")
        self.server.length = said
        self.wfile.write(body)

    def _headers(self, status: int, length: int, kind: str = "application/octet-stream", start: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length + self.server.length))
        if status == 206:
            size = len(self.server.content)
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size + self.server.length}")
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
    path = fetch("pretrain_t2t_mini", tmp_path / "new" / "dir", kind, hub.address)
    assert path == tmp_path / "new" / "dir" / FILE
    assert path.read_bytes() == CONTENT
    fetch("pretrain_t2t_mini", tmp_path / "new" / "dir", kind, hub.address)
    assert len(hub.ranges) == 1


def test_a_damaged_local_file_is_fetched_again(hub: StandIn, kind: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(CONTENT[:1000])
    assert fetch("pretrain_t2t_mini", tmp_path, kind, hub.address).read_bytes() == CONTENT


def test_a_killed_download_goes_on_where_it_stopped(hub: StandIn, kind: str, tmp_path: Path) -> None:
    hub.stall = True
    script = (
        "from pathlib import Path; from minimind.data.fetch import fetch; "
        f"fetch('pretrain_t2t_mini', Path({str(tmp_path)!r}), {kind!r}, {hub.address!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    wait_for(lambda: hub.halfway.is_set() and _partial(tmp_path), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / FILE).exists()
    size = _partial(tmp_path)
    assert size > 0
    assert fetch("pretrain_t2t_mini", tmp_path, kind, hub.address).read_bytes() == CONTENT
    assert hub.ranges[-1] == f"bytes={size}-"


def _partial(directory: Path) -> int:
    return max((file.stat().st_size for file in directory.rglob("*.partial")), default=0)


def test_a_wrong_checksum_is_refused_and_removed(hub: StandIn, kind: str, tmp_path: Path) -> None:
    hub.digest = "f" * 64
    with pytest.raises(UserError, match=r"the download is damaged \(not sha256 ffffffffffff\)"):
        fetch("pretrain_t2t_mini", tmp_path, kind, hub.address)
    assert not (tmp_path / FILE).exists()


def test_a_renamed_file_is_named(hub: StandIn, kind: str, tmp_path: Path) -> None:
    hub.index_name = "pretrain_new.jsonl"
    with pytest.raises(
        UserError, match=rf"not in {REPOSITORIES[kind]} any more .*; it holds pretrain_new\.jsonl; --hub "
    ):
        fetch("pretrain_t2t_mini", tmp_path, kind, hub.address)


def test_no_network_is_one_line(kind: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"{kind} can't be reached or refused .*--hub {(LIBRARIES.keys() - {kind}).pop()}"
    ) as caught:
        fetch("pretrain_t2t_mini", tmp_path, kind, "http://127.0.0.1:9")
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
        fetch("pretrain_t2t_mini", tmp_path, kind, address)
    if kind == "huggingface":
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(UserError, match="https://"):
            fetch("pretrain_t2t_mini", tmp_path, kind)


def test_no_token_is_sent(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch("pretrain_t2t_mini", tmp_path, "huggingface", hub.address)
    assert hub.ranges and "hf_secret" not in str(hub.sent) and "uthorization" not in str(hub.sent)


def read(url: str, size: int = len(CONTENT), start: int = 0) -> bytes:
    return b"".join(http.read_blocks(url, start, size))


@pytest.mark.parametrize(
    "target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x", "http://mirror.example/x", "//mirror.example/x"]
)
def test_a_redirect_to_somewhere_unsafe_is_not_followed(hub: StandIn, target: str) -> None:
    hub.redirect = target
    with pytest.raises((UserError, urllib.error.HTTPError)):
        read(f"{hub.address}/file")
    assert hub.ranges == [None]


def test_a_redirect_within_this_machine_is_followed_with_the_range(hub: StandIn) -> None:
    hub.redirect = f"{hub.address}/there"
    assert read(f"{hub.address}/file", start=1000) == CONTENT[1000:]
    assert hub.ranges == ["bytes=1000-"] * 2


@pytest.mark.parametrize("deaf", [False, True])
def test_broken_connections_are_taken_up_again(hub: StandIn, deaf: bool) -> None:
    """A server that knows no ranges begins anew each time, so there only the last answer may be whole."""
    hub.cut, hub.deaf = 2 << 20, deaf
    if not deaf:
        assert read(f"{hub.address}/file") == CONTENT
        assert hub.ranges == [None, f"bytes={2 << 20}-", f"bytes={4 << 20}-"]
        return
    with pytest.raises(ConnectionError, match="before the"):
        read(f"{hub.address}/file")
    hub.cut = None
    assert read(f"{hub.address}/file", start=5000) == CONTENT[5000:]


@pytest.mark.parametrize("length", [-5, 5])
def test_a_server_with_a_file_of_another_size_is_refused(hub: StandIn, length: int) -> None:
    hub.length = length
    for start in (0, 100):
        with pytest.raises(UserError, match=f"a file of {len(CONTENT) + length:,} bytes, the hub's index one of"):
            read(f"{hub.address}/file", start=start)


def test_a_download_of_another_version_is_not_gone_on_with(
    hub: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("huggingface_hub")
    (tmp_path / f"{FILE}.0123456789ab.partial").write_bytes(b"x" * 100)  # its beginning, before the hub had a new one
    assert fetch("pretrain_t2t_mini", tmp_path, "huggingface", hub.address).read_bytes() == CONTENT
    assert hub.ranges == [None] and [path.name for path in tmp_path.iterdir()] == [FILE]
    assert f"{len(CONTENT):,} bytes, revision {COMMIT} of jingyaogong/" in capsys.readouterr().err


def test_a_small_file_has_git_s_own_hash(hub: StandIn, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    hub.index_name, hub.content, hub.lfs = "lora_identity.jsonl", b'{"a": 1}\n', False
    hub.digest = hashlib.sha1(b"blob 9\0" + hub.content).hexdigest()
    assert fetch("lora_identity", tmp_path, "huggingface", hub.address).read_bytes() == hub.content
    hub.content = b'{"a": 2}\n'
    (tmp_path / "lora_identity.jsonl").unlink()
    with pytest.raises(UserError, match=r"damaged \(not blob "):
        fetch("lora_identity", tmp_path, "huggingface", hub.address)
    with pytest.raises(UserError, match="of 9 bytes, too small for --stream"):
        remote("lora_identity", "huggingface", hub.address)


def test_the_endpoint_of_the_environment_is_asked(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    assert fetch("pretrain_t2t_mini", tmp_path, "huggingface").read_bytes() == CONTENT


def test_where_a_file_of_before_is_now(hub: StandIn, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(UserError) as caught:
        fetch("pretrain_hq", tmp_path, "huggingface", hub.address)
    words = (
        "pretrain_hq.jsonl: not in",
        FILE,
        "today's is pretrain_t2t_mini",
        "--hub modelscope",
        "--revision 9f9f5d7",
    )
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_data_set_becomes_a_store_without_a_copy(
    hub: StandIn, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "cache"))
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(12_000)]
    plain = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
    hub.content = gzip.compress(plain, 1) if compressed else plain
    hub.digest, hub.cut = hashlib.sha256(hub.content).hexdigest(), 300_000
    tokenizer = Tokenizer.load(train_tokenizer(texts[:300], tmp_path / "tokenizer", 320))
    file = remote("pretrain_t2t_mini", kind, hub.address)
    made = TokenStore.open(prepare([file], tokenizer, tmp_path / "streamed"))
    (tmp_path / FILE).write_bytes(hub.content)
    expected = TokenStore.open(prepare([tmp_path / FILE], tokenizer, tmp_path / "copied"))
    assert made.manifest["key"] == expected.manifest["key"] and made.num_tokens == expected.num_tokens
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) < 1000
    hub.content = hub.content[:-5] + b"oops\n"
    with pytest.raises(UserError, match="damaged"):
        prepare([file], tokenizer, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    request = urllib.request.Request("https://hub.example/x")
    for target in ("http://127.0.0.1/x", "http://hub.example/x", "ftp://hub.example/x"):
        with pytest.raises(UserError, match="not followed"):
            http._Redirects().redirect_request(request, None, 302, "", {}, target)
    followed = http._Redirects().redirect_request(request, None, 302, "", {}, "https://cdn.example/x")
    assert followed.full_url == "https://cdn.example/x"


def test_the_command_streams_or_downloads(
    hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "cache"))
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(300)]
    train_tokenizer(texts, tmp_path / "tokenizer", 320)
    hub.index_name = "sft_t2t_mini.jsonl"
    turns = [{"role": "user", "content": texts[0]}, {"role": "assistant", "content": texts[1]}]
    hub.content = (json.dumps({"conversations": turns}) + "\n").encode() * 50
    hub.digest = hashlib.sha256(hub.content).hexdigest()
    common = ["fetch", "sft_t2t_mini", "--hub", "huggingface", "--endpoint", hub.address, "--output"]
    tokenizer = ["--tokenizer", str(tmp_path / "tokenizer")]
    assert run([*common, str(tmp_path / "store"), "--stream", *tokenizer, "--max-seq-length", "200"]) == 0
    assert TokenStore.open(tmp_path / "store").kind == "sft" and "prepared 50 of 50" in capsys.readouterr().err
    assert run([*common, str(tmp_path / "other"), "--stream"]) == 2 and "needs --tokenizer" in capsys.readouterr().err
    assert run([*common, str(tmp_path / "other"), *tokenizer]) == 2 and "are for --stream" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert run([*common, str(tmp_path / "files"), "--revision", COMMIT]) == 0
    assert (tmp_path / "files" / "sft_t2t_mini.jsonl").read_bytes() == hub.content


def test_wrong_names_and_missing_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no such data set; one of pretrain_t2t_mini, pretrain_t2t"):
        fetch("pretrain", tmp_path)
    with pytest.raises(UserError, match="no such hub; one of huggingface, modelscope"):
        fetch("pretrain_t2t_mini", tmp_path, "github")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs huggingface_hub or modelscope: pip install huggingface_hub"):
        fetch("pretrain_t2t_mini", tmp_path)
