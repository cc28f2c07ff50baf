"""Small files that would fill the memory or never end: each command refuses them, in one process with one GiB to spare.

One process for all: what costs is importing torch. A command that hangs is ended by the limit of a test.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.waiting import PATIENCE

TEXTS = [f"the {a} {b} ran to {c}\n你好，世界{a}{c}" for a in range(9) for b in "xyz" for c in "pqrs"]
MIB = 1 << 20
DEEP = "[" * 200_000

# Runs the command lines on stdin, each a JSON list, and answers each with a JSON list: exit code, what it printed.
RUNNER = """
import contextlib, io, json, resource, sys
import matplotlib.figure, matplotlib.backends.backend_svg, torch, numpy, safetensors.torch, sentencepiece
import minimind.training.run.evaluation, minimind.inference.generation, minimind.commands.plan
import minimind.data.check.check
from minimind import cli
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30),) * 2)
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = cli.run(json.loads(line))
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


class Models:
    """A sound model, and copies of it with one file changed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        tokenizer = Tokenizer.load(train_tokenizer(TEXTS, directory / "tokenizer", 300))
        config = ModelConfig.preset("tiny", vocab_size=300, hidden_size=32, num_hidden_layers=2)
        self.state = Transformer(config, seed=3).state_dict()
        self.sound = directory / "sound"
        save_pretrained(self.state, config, tokenizer, self.sound)

    def changed(self, name: str, file: str, content: bytes) -> Path:
        """A copy in which ``file`` holds ``content``."""
        copy = self.directory / name
        shutil.copytree(self.sound, copy)
        (copy / file).write_bytes(content)
        return copy

    def with_config(self, name: str, **fields: Any) -> Path:
        config = json.loads((self.sound / "config.json").read_text()) | fields
        return self.changed(name, "config.json", json.dumps(config).encode())

    def pth(self, name: str, state: Any) -> Path:
        """torch.save's file, a tokenizer beside it."""
        file = self.changed(name, "a.pth", b"") / "a.pth"
        torch.save(state, file)
        return file

    def pickled(self, name: str, pickled: bytes) -> Path:
        """The archive that torch.save writes, with another pickle in it."""
        file = self.pth(name, {"a": torch.zeros(1)})
        content = io.BytesIO()
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(content, "w") as new:
            for member in old.infolist():
                new.writestr(member.filename, pickled if member.filename.endswith("data.pkl") else old.read(member))
        file.write_bytes(content.getvalue())
        return file

    def deflated(self, name: str) -> Path:
        file = self.pth(name, {"model.embed_tokens.weight": torch.zeros(4 * MIB)})
        content = io.BytesIO()
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as new:
            for member in old.infolist():
                new.writestr(member.filename, old.read(member))
        file.write_bytes(content.getvalue())
        return file


def laughs() -> str:
    """Ten aliases a line, ten lines: some hundred bytes for 10**10 words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 11)]
    return "\n".join(lines)


def hashed_for_ever() -> bytes:
    """{t: None} with t = (s, s), s = (r, r), ... sixty times."""
    turns = b"".join(b"q%c" % i + b"h%c" % i + b"\x86" for i in range(60))
    return b"\x80\x02}(K\x01" + turns + b"Nu."


def allocates() -> bytes:
    """bytearray(10**10)."""
    return b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (10**10).to_bytes(5, "little") + b"\x85R."


def data(directory: Path, name: str, content: bytes) -> Path:
    (directory / name).write_bytes(content)
    return directory / name


def run_of(directory: Path, name: str, **files: str) -> Path:
    """A run directory with these files, whose dots are written as ``__``."""
    (directory / name).mkdir()
    for file, text in files.items():
        (directory / name / file.replace("__", ".")).write_text(text)
    return directory / name


def sparse(file: Path, size: int) -> Path:
    with file.open("wb") as sink:
        sink.truncate(size)
    return file


def model_bombs(models: Models) -> Iterator[tuple[list[str], str]]:
    """(arguments, what the error must say), for commands that take a MODEL."""
    state = models.state
    shared = torch.zeros(1000, 1000)
    for path, said in (
        (models.with_config("layers", num_hidden_layers=100_000_000), "num_hidden_layers"),
        (models.with_config("many", num_hidden_layers=1000), "1,000 layers"),
        (models.with_config("wide", hidden_size=10**12), "hidden_size"),
        (models.changed("deep", "config.json", DEEP.encode()), "nested too deeply"),
        (models.changed("digits", "config.json", b'{"hidden_size": ' + b"9" * 100_000 + b"}"), "config.json"),
        (models.changed("header", "model.safetensors", (1 << 40).to_bytes(8, "little")), "safetensors"),
        (models.pth("strides", {"model.embed_tokens.weight": torch.zeros(1).expand(10**6, 10**6)}), "more numbers"),
        (models.pth("shared", {**state, **{f"model.layers.{i}.x": shared for i in range(500)}}), "declare"),
        (models.pth("whole", {**state, "model.norm.weight": torch.ones(32, dtype=torch.int64)}), "int64"),
        (models.pth("sparse", {**state, "model.norm.weight": torch.ones(32).to_sparse()}), "a.pth"),
        (models.deflated("deflated"), "compressed"),
        (models.pickled("bytearray", allocates()), "bytearray"),
        (models.pickled("hash", hashed_for_ever()), "tuples"),
    ):
        yield ["generate", str(path), "--prompt", "a", "--max-new-tokens", "1"], said
    tokenizer = models.changed("tokenizer-size", "tokenizer.model", b"") / "tokenizer.model"
    sparse(tokenizer, 8 << 30)
    yield ["generate", str(tokenizer.parent), "--prompt", "a"], "larger than 16 MiB"
    fifo = models.changed("tokenizer-fifo", "tokenizer.model", b"") / "tokenizer.model"
    fifo.unlink()
    os.mkfifo(fifo)
    yield ["export", str(fifo.parent), "--output", str(models.directory / "out")], "tokenizer-fifo"


def data_bombs(directory: Path) -> Iterator[tuple[list[str], str]]:
    yield (
        ["check", str(data(directory, "a.jsonl.gz", gzip.compress(b"a" * MIB) * 260))],
        "grows to more than 250 times",
    )
    for name in ("fifo", "link"):
        (directory / name).mkdir()
        data(directory / name, "a.jsonl", b'{"text": "a"}\n')
    os.mkfifo(directory / "fifo" / "b.jsonl")
    yield ["check", str(directory / "fifo")], "not a file"
    yield ["check", str(directory / "fifo" / "*.jsonl")], "not a file"
    (directory / "link" / "b.jsonl").symlink_to("/etc/hostname")
    yield ["check", str(directory / "link")], "leads out of"
    yield ["check", "/dev/zero"], "a device"


def config_bombs(directory: Path) -> Iterator[tuple[list[str], str]]:
    shipped = str(Path(__file__).parents[2] / "ds_configs" / "fp32.json")
    for name, text, said in (
        ("laughs", laughs(), "alias"),
        ("deep", DEEP, "nested"),
        ("layers", "model: {num_hidden_layers: 100000000}", "num_hidden_layers"),
        ("long", "a: " + "x" * (2 * MIB), "larger than"),
        ("digits", f"seed: {'9' * 10_000}", "does not fit"),
    ):
        path = data(directory, f"{name}.yaml", text.encode())
        yield ["plan", "--deepspeed_config", shipped, "--config", str(path)], said
    yield (["plan", "--deepspeed_config", shipped, "--set", "model.num_hidden_layers=100000000"], "num_hidden_layers")
    yield ["plan", "--deepspeed_config", shipped, "--set", "seed=&a [*a, *a]"], "alias"
    yield ["plan", "--deepspeed_config", str(data(directory, "deep.json", DEEP.encode()))], "nested"
    yield ["plan", "--deepspeed_config", str(sparse(directory / "large.json", 8 << 30))], "larger than"


def run_bombs(directory: Path) -> Iterator[tuple[list[str], str]]:
    step = '{"kind": "train", "step": 1, "loss": 2.0}\n'
    good = run_of(directory, "shown", metrics__jsonl=step + DEEP + "\n", config__yaml=laughs(), ds_config__json=DEEP)
    yield ["report", str(good)], ""
    large = run_of(directory, "large", metrics__jsonl=step)
    sparse(large / "environment.json", 8 << 30)
    yield ["report", str(large)], "larger than"
    fifo = run_of(directory, "metrics-fifo")
    os.mkfifo(fifo / "metrics.jsonl")
    yield ["report", str(fifo)], "no regular file"
    yield ["samples", str(fifo), "--step", "1"], "no regular file"
    number = run_of(directory, "text", metrics__jsonl=step.replace("2.0", '"2"'))
    yield ["report", str(number)], "metrics.jsonl:1: loss is"


def test_no_small_file_fills_the_memory_or_runs_for_ever(tmp_path: Path) -> None:
    families: dict[str, Callable[[Any], Iterator[tuple[list[str], str]]]] = {
        "data": data_bombs,
        "config": config_bombs,
        "runs": run_bombs,
    }
    cases = []
    for name, family in families.items():
        (tmp_path / name).mkdir()
        cases += family(tmp_path / name)
    (tmp_path / "models").mkdir()
    cases += model_bombs(Models(tmp_path / "models"))
    lines = "".join(json.dumps(arguments) + "\n" for arguments, _ in cases)
    done = subprocess.run([sys.executable, "-c", RUNNER], input=lines, capture_output=True, text=True, timeout=PATIENCE)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases), f"ended at {cases[len(answers)][0]}: {done.stderr[-2000:]}"
    for (arguments, said), (code, printed) in zip(cases, answers, strict=True):
        wrong = 1 if arguments[0] == "check" else 2  # `check` tells what is wrong with a file as a result
        assert code in (wrong, 2) if said else code == 0, (arguments, code, printed[-500:])
        assert said in " ".join(printed.split()) and "a bug" not in printed, (arguments, code, printed[-500:])


def test_a_tuple_that_is_used_twice_in_settings_is_read(tmp_path: Path) -> None:
    from minimind.interop.upstream import read_torch

    betas = (0.9, 0.999)
    content = {"groups": [{"betas": betas}, {"betas": betas, "w": torch.ones(2)}], "shape": torch.Size([1, 2])}
    for new in (True, False):
        torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=new)
        assert read_torch(tmp_path / "a.pt")["groups"][0]["betas"] == betas


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x04.", b"not a pickle", b"\x80\x02}."])
def test_what_is_no_weight_file_is_told_by_its_name(tmp_path: Path, content: bytes) -> None:
    from minimind.base.errors import UserError
    from minimind.interop.upstream import read_torch

    with pytest.raises(UserError, match=r"a\.pth: can't be read as weights only"):
        read_torch(data(tmp_path, "a.pth", content))
