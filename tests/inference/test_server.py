"""The command `minimind serve`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minimind import cli
from minimind.inference.server import listen, model_name
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from tests.inference.running import CHAT, HELLO  # noqa: E402
from tests.waiting import PATIENCE  # noqa: E402


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, model: Transformer, tokenizer: Tokenizer) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny-model"
    save_pretrained(model.state_dict(), model.config, tokenizer, path)
    return path


@pytest.mark.slow
def test_ctrl_c_ends_an_answer_and_the_server_with_exit_code_0(directory: Path) -> None:
    command = [sys.executable, "-m", "minimind.cli", "serve", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("tiny-model: chat page http://127.0.0.1:")
        address = line.split()[3].rstrip("/,")
        with httpx.Client(base_url=address, timeout=PATIENCE, trust_env=False) as client:
            assert client.get("/health").json() == {"status": "ok"}
            body = {**HELLO, "stream": True, "temperature": 2}
            with client.stream("POST", CHAT, json=body) as response:
                lines = response.iter_lines()
                next(lines)
                process.send_signal(signal.SIGINT)
                list(lines)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_an_address_in_use_is_one_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        assert cli.run(["serve", str(directory), "--port", port]) == 2
    error = capsys.readouterr().err
    assert f"can't listen on 127.0.0.1, port {port}" in error and "--port 0" in error and error.count("\n") == 1


def test_without_the_extra_one_line_says_what_to_install(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.run(["serve", str(directory)]) == 2
    assert capsys.readouterr().err == "error: uvicorn is missing: pip install 'minimind-deepspeed[serve]'\n"


@pytest.mark.parametrize("key", ["", " ", "a\n", "a\x1bb"])
def test_a_key_that_is_none_is_refused(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    def no_model(*_: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr("minimind.inference.generation.load_model", no_model)
    assert cli.run(["serve", str(directory), "--api-key", key]) == 2
    assert capsys.readouterr().err.startswith("error: --api-key ")
    monkeypatch.setenv("MINIMIND_API_KEY", key)
    assert cli.run(["serve", str(directory)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and ("MINIMIND_API_KEY" in error or "--api-key" in error)


def test_the_models_name(tmp_path: Path) -> None:
    (tmp_path / "full_sft_512.pth").touch()
    assert model_name(tmp_path / "full_sft_512.pth") == "full_sft_512"
    assert model_name(tmp_path / "runs" / "sft" / "") == "sft"
