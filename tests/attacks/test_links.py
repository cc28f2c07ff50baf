"""Every command over directories in which each of this program's names is a link to a file of the user's."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from minimind import cli
from minimind.base.errors import UserError
from minimind.config.model import ModelConfig
from minimind.data.store.prepare import prepare
from minimind.data.store.store import TokenStore
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer
from minimind.training.record.file import to_line
from tests.attacks.traps import Victim

MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "generation_config.json",
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
RUN_FILES = (
    "report.html",
    "metrics.jsonl",
    "config.yaml",
    "ds_config.json",
    "environment.json",
    "tokenizer.model",
    "samples.jsonl",
    "trackers.json",
    ".lock",
    "latest",
    "best",
    "recovery.json",
    "post_mortem.json",
)
STORE_FILES = ("manifest.json", "tokens.bin", "offsets.npy", "source_file.npy", "source_line.npy", "bytes.npy")
CORPUS_FILES = ("pretrain.jsonl", "eval.jsonl", "sft.jsonl", "sft_eval.jsonl", "floor.json")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim.make(tmp_path / "mine")


@pytest.fixture(scope="module")
def model(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.load(files["tokenizer"])
    config = ModelConfig.preset("tiny", vocab_size=330, hidden_size=32, num_hidden_layers=1, head_dim=8)
    path = tmp_path_factory.mktemp("strangers") / "model"
    save_pretrained(Transformer(config).state_dict(), config, tokenizer, path)
    return path


@pytest.fixture(scope="module")
def store(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare([files["pretrain"]], Tokenizer.load(files["tokenizer"]), tmp_path_factory.mktemp("s") / "store")


@pytest.fixture
def strangers_run(tmp_path: Path, model: Path, store: Path) -> Path:
    """A finished run as a stranger hands it over."""
    path = tmp_path / "run"
    shutil.copytree(model, path / "final")
    about = {"kind": "run", "model": "tiny", "parameters": 1, "store": str(store), "seed": 0, "total_steps": 2}
    about |= {"micro_batch_size": 2, "accumulation": 1, "world_size": 1, "row_length": 64}
    (path / "metrics.jsonl").write_bytes(to_line(about) + to_line({"kind": "train", "step": 1, "loss": 1.0}))
    for name, content in (("config.yaml", "seed: 1\n"), ("ds_config.json", "{}"), ("environment.json", "{}")):
        (path / name).write_text(content)
    return path


def run(*words: object) -> int:
    return cli.run([str(word) for word in words], False)


def said(capfd: pytest.CaptureFixture[str]) -> str:
    out = capfd.readouterr()
    return out.out + out.err


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_with_one_name_a_link(
    name: str, strangers_run: Path, victim: Victim, capfd: pytest.CaptureFixture[str]
) -> None:
    victim.plant(strangers_run, [name])
    code = run("report", strangers_run)
    samples = run("samples", strangers_run, "--step", 1)
    out = said(capfd)
    victim.assert_unharmed(strangers_run, said=out)
    read = name in ("metrics.jsonl", "config.yaml", "ds_config.json", "environment.json")
    assert code == (2 if read else 0)
    assert samples in (0, 2) and "Traceback" not in out
    if read:
        assert f"{strangers_run / name}: leads out of {strangers_run} by a link" in out
    else:
        assert "MiniMind on DeepSpeed" in (strangers_run / "report.html").read_text()
        assert not (strangers_run / "report.html").is_symlink()


def test_a_report_of_several_runs_does_not_follow_a_link_beside_them(
    strangers_run: Path, victim: Victim, tmp_path: Path
) -> None:
    victim.plant(tmp_path, ["report.html"])
    assert run("report", strangers_run, strangers_run) == 0
    victim.assert_unharmed(strangers_run)
    assert (tmp_path / "report.html").is_file() and not (tmp_path / "report.html").is_symlink()


def test_a_link_to_another_file_of_the_run_is_no_harm(strangers_run: Path) -> None:
    (strangers_run / "environment.json").unlink()
    (strangers_run / "environment.json").symlink_to("ds_config.json")
    assert run("report", strangers_run) == 0


COMMANDS_ON_MODELS = [("generate", name) for name in (*MODEL_FILES, "checkpoints", "final")] + [
    (command, name) for command in ("evaluate", "export") for name in ("tokenizer.model", "model.safetensors", "final")
]


@pytest.mark.parametrize(("command", "name"), COMMANDS_ON_MODELS)
def test_a_model_with_one_name_a_link(
    command: str,
    name: str,
    strangers_run: Path,
    victim: Victim,
    files: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if name in ("checkpoints", "final"):
        victim.plant(strangers_run, directories=[name])
    else:
        victim.plant(strangers_run / "final", [name])
    more = {
        "generate": ["--prompt", "sea", "--max-new-tokens", 2],
        "evaluate": ["--file", files["pretrain"], "--max-seq-length", 64],
        "export": ["--format", "hf", "--output", tmp_path / "exported"],
    }[command]
    code = run(command, strangers_run, *more)
    out = said(capfd)
    victim.assert_unharmed(strangers_run, tmp_path / "exported", said=out)
    assert "Traceback" not in out and "a bug" not in out
    assert code == (2 if name in ("config.json", "model.safetensors", "tokenizer.model", "final") else 0)


@pytest.mark.parametrize("command", ["chat", "serve"])
def test_chat_and_serve_read_no_link(
    command: str,
    strangers_run: Path,
    victim: Victim,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    for name in ("tokenizer.model", "model.safetensors", "config.json"):
        victim.plant(strangers_run / "final", [name])
        assert run(command, strangers_run) == 2
    victim.assert_unharmed(strangers_run, said=said(capfd))


def test_a_pointer_out_of_the_run_is_not_followed(
    strangers_run: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(strangers_run / "final")
    (strangers_run / "latest").write_text(f"{os.path.relpath(model, strangers_run)}\n")
    assert run("generate", strangers_run, "--prompt", "sea") == 2
    assert "which is no checkpoint of this run" in said(capfd)


def test_a_hub_cache_loads(model: Path, tmp_path: Path) -> None:
    """Hugging Face's layout: each name of a snapshot is a link to a blob of the same repository."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    blobs = shutil.copytree(model, tmp_path / "models--a--b" / "blobs")
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    assert run("generate", snapshot, "--prompt", "sea", "--max-new-tokens", 2) == 0
    linked = tmp_path / "models--c--d" / "snapshots" / "0123"
    shutil.copytree(snapshot, linked, symlinks=True)
    (tmp_path / "models--c--d" / "blobs").symlink_to(blobs)  # another repository's, or ~/.ssh
    assert run("generate", linked, "--prompt", "sea") == 2


def test_what_a_person_names_may_be_a_link(model: Path, strangers_run: Path, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(strangers_run)
    (tmp_path / "tokenizer.link").symlink_to(model / "tokenizer.model")
    assert run("report", tmp_path / "named") == 0
    assert run("generate", tmp_path / "named", "--prompt", "sea", "--max-new-tokens", 2) == 0
    assert Tokenizer.load(tmp_path / "tokenizer.link").vocab_size == 330


@pytest.mark.parametrize("name", STORE_FILES)
def test_a_store_with_one_name_a_link(
    name: str, store: Path, victim: Victim, tmp_path: Path, files: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(store, tmp_path / "store")
    victim.plant(copy, [name])
    with pytest.raises(UserError, match=r"leads out of .* by a link, which is not followed"):
        TokenStore.open(copy)
    assert run("prepare", files["pretrain"], "--tokenizer", files["tokenizer"], "--output", copy) == 2
    out = said(capfd)
    assert "exists and is no token store" in out
    victim.assert_unharmed(copy, said=out)


def test_data_directories_are_read_inside_only(
    victim: Victim, files: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    victim.plant(data, ["a.txt"])
    for command in (
        ["check", data],
        ["train-tokenizer", data, "--output", tmp_path / "t"],
        ["prepare", data, "--tokenizer", files["tokenizer"], "--output", tmp_path / "s"],
    ):
        assert run(*command) == 2
    out = said(capfd)
    assert out.count(f"{data / 'a.txt'}: leads out of {data} by a link") == 3
    victim.assert_unharmed(data, said=out)


def test_a_pipe_among_data_is_not_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    assert run("check", tmp_path) == 2
    assert "a.jsonl: a pipe, device or socket, not a file" in said(capfd)


def test_outputs_replace_links_and_leave_what_they_name(
    victim: Victim, files: dict[str, Path], strangers_run: Path, tmp_path: Path, cache: Path
) -> None:
    out = tmp_path / "out"
    victim.plant(out, ["tokenizer.model", "model.gguf", "model.pth"])
    victim.plant(tmp_path, [".store.lock", "out.rejected.jsonl.x"])
    texts = tmp_path / "texts"
    assert run("train-tokenizer", files["pretrain"], "--output", out, "--vocab-size", 330) == 0
    assert run("export", strangers_run, "--format", "pth", "--output", out / "model.pth") in (0, 2)
    pytest.importorskip("gguf")
    assert run("export", strangers_run, "--format", "gguf", "--output", out) == 0
    assert not (out / "tokenizer.model").is_symlink() and not (out / "model.gguf").is_symlink()
    victim.assert_unharmed(out, texts)


def test_names_of_products_that_are_links_are_refused_where_they_would_be_read(
    victim: Victim, files: dict[str, Path], strangers_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A lock, a list of rejects, an exported model, the corpus, the demo's directories."""
    victim.plant(tmp_path, ["a.lock", "b.rejected.jsonl"])
    base = ["prepare", files["pretrain"], "--tokenizer", files["tokenizer"], "--output"]
    assert run(*base, tmp_path / "a") == 2
    assert run(*base, tmp_path / "b") == 2
    victim.plant(tmp_path / "hf", MODEL_FILES)
    assert run("export", strangers_run, "--format", "hf", "--output", tmp_path / "hf") == 2
    victim.plant(tmp_path / "corpus", CORPUS_FILES)
    assert run("demo-data", tmp_path / "corpus") == 2
    for name in ("data", "tokenizer", "pretrain", "sft"):
        victim.plant(tmp_path / f"demo-{name}", directories=[name])
    assert run("demo", "--directory", tmp_path / "demo-data") == 2
    assert run("demo", "--directory", tmp_path / "demo-tokenizer") == 2
    out = said(capfd)
    assert "Traceback" not in out and "a bug" not in out
    victim.assert_unharmed(tmp_path / "hf", tmp_path / "corpus", said=out)


def test_doctor_leaves_a_directory_of_links_alone(
    victim: Victim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "cwd"
    victim.plant(place, [*RUN_FILES, *MODEL_FILES, *STORE_FILES], ["runs", "checkpoints"])
    monkeypatch.chdir(place)
    assert run("doctor") in (0, 1)
    victim.assert_unharmed(place, said=said(capfd))


@pytest.mark.parametrize("room", ["stores", "hashes", "spool"])
def test_a_cache_of_links(
    room: str, victim: Victim, cache: Path, files: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    victim.plant(cache, directories=[room])
    with pytest.raises(UserError, match=f"{cache / room}: can't be the cache: a symbolic link"):
        prepare([files["pretrain"]], Tokenizer.load(files["tokenizer"]))
    victim.assert_unharmed(said=said(capfd))


def test_links_in_the_rooms_of_the_cache(
    victim: Victim, cache: Path, files: dict[str, Path], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Locks, remembered hashes and the store itself, under the names that they had before."""
    tokenizer = Tokenizer.load(files["tokenizer"])
    store = prepare([files["pretrain"]], tokenizer)
    remembered = [path.name for path in (cache / "hashes").iterdir()]
    victim.plant(cache / "hashes", remembered)
    assert prepare([files["pretrain"]], tokenizer) == store
    store.rename(tmp_path / "moved")
    victim.plant(cache / "stores", directories=[store.name])
    with pytest.raises(UserError, match="exists and is no token store"):
        prepare([files["pretrain"]], tokenizer)
    victim.plant(cache / "stores", [f"{store.name}.lock"])
    with pytest.raises(UserError, match="can't be written: a symbolic link, which is not followed"):
        prepare([files["pretrain"]], tokenizer)
    victim.assert_unharmed(said=said(capfd))


def test_fetch_writes_through_no_link(
    victim: Victim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from minimind.data import fetch

    digest = hashlib.sha256(b"data").hexdigest()
    hub = fetch._Hub("c" * 40, lambda file: fetch.Entry(4, "sha256", digest), list, lambda file: f"https://hub/{file}")
    monkeypatch.setattr(fetch, "_chosen", lambda hub: "huggingface")
    monkeypatch.setattr(fetch, "_hugging_face", lambda address, revision: hub)
    monkeypatch.setattr(fetch, "read_blocks", lambda url, start, size: iter([b"data"[start:size]]))
    partial = f"pretrain_hq.jsonl.{digest[:12]}.partial"
    out = tmp_path / "out"
    victim.plant(out, [partial, "pretrain_hq.jsonl"])
    assert run("fetch", "pretrain_hq", "--output", out) == 2
    assert "a symbolic link, which is not followed" in said(capfd)
    (out / partial).unlink()
    assert run("fetch", "pretrain_hq", "--output", out) == 0
    assert (out / "pretrain_hq.jsonl").read_bytes() == b"data"
    assert sorted(p.name for p in out.iterdir()) == ["pretrain_hq.1.jsonl", "pretrain_hq.jsonl"]
    victim.assert_unharmed(out)
