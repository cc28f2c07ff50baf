"""The Modelfile beside a GGUF file: its template spells chat.py's prompts, and a stranger's file stays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minimind.commands.models import export_model
from minimind.interop.gguf_tokenizer import answer_end
from minimind.interop.huggingface import save_pretrained
from minimind.interop.modelfile import MARK, modelfile
from minimind.model.transformer import ModelConfig, Transformer
from minimind.text.chat import Turn
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from tests.text.spelled import as_text
from tests.text.templates import TEMPLATES, write_tokenizer

pytest.importorskip("gguf")
CONFIG = ModelConfig.preset("tiny", vocab_size=320, num_hidden_layers=2, max_position_embeddings=512)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("model")
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(200)]
    tokenizer = Tokenizer.load(train_tokenizer(texts, root / "tokenizer", 320))
    save_pretrained(Transformer(CONFIG).state_dict(), CONFIG, tokenizer, root / "model")
    return root / "model"


def spelled(template: str, messages: list[Turn]) -> str:
    """What Go's text/template makes of the few forms that the file uses."""
    start, end = "{{- range .Messages }}", "{{ end }}"
    body = template[template.index(start) + len(start) : template.index(end)]
    turns = [body.replace("{{ .Role }}", turn.role).replace("{{ .Content }}", turn.content) for turn in messages]
    return "".join(turns) + template[template.index(end) + len(end) :]


def commands(text: str) -> list[tuple[str, str]]:
    """As Ollama's parser/parser.go reads a Modelfile: a name of letters, white space, and a value to the end of its
    line, or to the quotes that close it."""
    found, rest = [], text
    while rest := rest.lstrip(" \t\r\n"):
        if rest.startswith("#"):
            rest = rest.partition("\n")[2]
            continue
        name = re.match(r"(FROM|TEMPLATE|PARAMETER [a-z0-9_]+)[ \t]+", rest)
        assert name is not None, rest
        rest = rest[name.end() :]
        quote = next((mark for mark in ('"""', '"') if rest.startswith(mark)), "")
        end = rest.index(quote, len(quote)) if quote else (rest + "\n").index("\n")
        found.append((name[1], rest[len(quote) : end].strip("" if quote else None)))
        rest = rest[end + len(quote) :]
        assert rest[:1] == "\n", "something behind a value"
    return found


@pytest.mark.parametrize("name", ["m.gguf", "my model #1.gguf", 'quo"ted.gguf'])
def test_ollama_reads_it(name: str, model: Path) -> None:
    found = dict(commands(modelfile(name, CONFIG, Tokenizer.load(model))))
    assert found["FROM"] == f"./{name}"
    assert found["PARAMETER stop"] == "<|im_end|>"
    assert found["TEMPLATE"].startswith("{{- range .Messages }}") and found["TEMPLATE"].endswith("assistant\n")
    assert [float(found[f"PARAMETER {key}"]) for key in ("temperature", "top_p", "num_ctx")] == [0.7, 0.9, 512]


def test_it_is_written_beside_the_model(model: Path, tmp_path: Path) -> None:
    export_model(model, tmp_path / "small.gguf", "gguf", "q8_0")
    text = (tmp_path / "Modelfile").read_text()
    assert "FROM ./small.gguf\n" in text and 'PARAMETER stop "<|im_end|>"\n' in text
    assert "PARAMETER num_ctx 512\n" in text and "PARAMETER temperature 0.7\n" in text
    template = text.split('TEMPLATE """')[1].split('"""')[0]
    turns = [Turn("system", "be brief"), Turn("user", "hello\nfox")]
    assert spelled(template, turns) == as_text(turns, generation_prompt=True)


def test_another_modelfile_stays(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Modelfile").write_text("FROM mine\n")
    export_model(model, tmp_path, "gguf", None)
    assert (tmp_path / "Modelfile").read_text() == "FROM mine\n" and (tmp_path / "model.gguf").is_file()
    assert "not written by an export, so it stays" in capsys.readouterr().err
    (tmp_path / "Modelfile").write_text(MARK)
    export_model(model, tmp_path, "gguf", None)
    assert (tmp_path / "Modelfile").read_text() == modelfile("model.gguf", CONFIG, Tokenizer.load(model))


def test_a_template_of_its_own_ends_answers_with_its_own_token(tmp_path: Path) -> None:
    """As Mistral's, which has eos behind what the assistant says; <|im_end|> is there and ends something else."""
    template = TEMPLATES["bracketed"].replace("<|endoftext|>", "<|im_end|>")
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path, template, eos_token="<|endoftext|>"))
    assert tokenizer.decode([answer_end(tokenizer)], with_special=True) == "<|endoftext|>"
    assert 'PARAMETER stop "<|endoftext|>"\n' in modelfile("model.gguf", CONFIG, tokenizer)
