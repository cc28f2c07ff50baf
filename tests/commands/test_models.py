"""The small commands on a tiny model that was never trained, and on a run that was."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind import cli
from minimind.base.errors import UserError
from minimind.commands.models import evaluate_file, export_hf, export_model, samples_of_step, train_tokenizer_on
from minimind.config.model import ModelConfig
from minimind.data.records.options import ReadingOptions
from minimind.data.store.batches import Batches
from minimind.data.store.prepare import prepare
from minimind.data.store.store import TokenStore
from minimind.inference.about import About, about_model, write_about
from minimind.inference.loading import load_model
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer, train_tokenizer
from minimind.training.record.file import to_line

VOCABULARY, ROW = 320, 32


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIMIND_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """texts.jsonl, chats.jsonl, tokenizer/ and model/."""
    root = tmp_path_factory.mktemp("corpus")
    texts = [f"The river {n} runs past the hill. 河水流过小山{n}。" for n in range(200)]
    (root / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Past the hill."}]
    (root / "chats.jsonl").write_text(json.dumps({"conversations": turns}) + "\n")
    tokenizer = Tokenizer.load(train_tokenizer(texts, root / "tokenizer", vocab_size=VOCABULARY))
    config = ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    save_pretrained(Transformer(config).state_dict(), config, tokenizer, root / "model")
    return root


def test_evaluation_does_not_depend_on_the_batch_size(corpus: Path) -> None:
    results = [evaluate_file(corpus / "model", [corpus / "texts.jsonl"], None, ROW, size) for size in (1, 8)]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-5)
    assert results[0]["tokens"] == results[1]["tokens"] > 1000
    # A model that knows nothing is about as good as a uniform guess.
    assert results[0]["loss"] == pytest.approx(math.log(VOCABULARY), rel=0.05)
    assert results[0]["perplexity"] == pytest.approx(math.exp(results[0]["loss"]), rel=1e-4)
    assert results[0]["bits_per_byte"] > 1


def test_conversations_are_recognised_and_count_answers_only(corpus: Path) -> None:
    result = evaluate_file(corpus / "model", [corpus / "chats.jsonl"], None, 64, 2)
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    assert result["tokens"] == len(tokenizer.encode("Past the hill.")) + 1  # and its end token
    assert result["bits_per_byte"] == "n/a"


def test_a_file_without_records_is_named(corpus: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"other": 1}\n{"other": 2}\n')
    with pytest.raises(UserError, match=r"empty\.jsonl:1: no known format \(fields: other\)"):
        evaluate_file(corpus / "model", [empty], None, ROW, 2)


def test_evaluation_reads_any_file_that_preparing_reads(corpus: Path, tmp_path: Path) -> None:
    texts = [json.loads(line)["text"] for line in (corpus / "texts.jsonl").read_text().splitlines()]
    expected = evaluate_file(corpus / "model", [corpus / "texts.jsonl"], None, ROW, 8)
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [json.dumps({"body": text}, ensure_ascii=False) for text in texts]
    (folder / "odd.jsonl").write_bytes("\n".join([*rows, '{"body": null}']).encode("gb18030"))
    reading = ReadingOptions(text_field="body", encoding="gb18030")
    found = evaluate_file(corpus / "model", [folder], None, ROW, 8, reading=replace(reading, skip_bad=True))
    assert found == expected
    with pytest.raises(UserError, match=r'odd\.jsonl:201: "body" is null'):
        evaluate_file(corpus / "model", [folder], None, ROW, 8, reading=reading)


BAD = ['{"text": null}', '{"body": "sea"}', "not json"]


def test_a_tokenizer_accounts_for_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"text": f"The river {n} runs past the hill."}) for n in range(150)]
    turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Past the hill."}]
    path, output = tmp_path / "mixed.jsonl", tmp_path / "deep" / "tokenizer"
    path.write_text("\n".join([*rows, *[json.dumps({"conversations": turns})] * 150, "", *BAD]))
    with pytest.raises(UserError) as caught:
        train_tokenizer_on([path], output, 300)
    for line, reason in ((302, '"text" is null'), (303, "no known format (fields: body)"), (304, "not JSON")):
        assert f"{path}:{line}: {reason}" in str(caught.value)
    assert not output.exists()
    assert Tokenizer.load(train_tokenizer_on([path], output, 300, ReadingOptions(skip_bad=True))).vocab_size == 300
    said = capsys.readouterr().err
    assert "learned from 300 of 303 records" in said
    left_out = [json.loads(line)["line"] for line in (tmp_path / "deep" / "tokenizer.rejected.jsonl").open()]
    assert left_out == [302, 303, 304]
    with pytest.raises(UserError, match=r"3 of 303 records read are bad \(the limit is 0.5%\)"):
        train_tokenizer_on([path], output, 300, ReadingOptions(skip_bad=True, max_bad_ratio=0.005))


def test_export_gives_the_same_weights(corpus: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    export_hf(corpus / "model", tmp_path / "out")
    before, after = (load_file(path / "model.safetensors") for path in (corpus / "model", tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


@pytest.mark.parametrize(("dtype", "stored"), [("f16", torch.float16), ("bf16", torch.bfloat16), (None, torch.float32)])
def test_export_in_another_precision(corpus: Path, tmp_path: Path, dtype: Any, stored: torch.dtype) -> None:
    from safetensors.torch import load_file

    export_model(corpus / "model", tmp_path / "out", "hf", dtype)
    before, after = (load_file(path / "model.safetensors") for path in (corpus / "model", tmp_path / "out"))
    assert all(torch.equal(after[name], value.to(stored)) for name, value in before.items())
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert about["torch_dtype"] == str(stored).removeprefix("torch.")
    load_model(tmp_path / "out")


@pytest.mark.parametrize(
    ("format", "dtype", "words"),
    [
        ("hf", "q8_0", "--dtype q8_0 is for --format gguf"),
        ("pth", "f16", "MiniMind's .pth is f16"),
        ("gguf", "f16", "--license is for --format hf"),
    ],
)
def test_what_a_format_has_not_is_refused(corpus: Path, tmp_path: Path, format: str, dtype: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        export_model(corpus / "model", tmp_path, format, dtype, licence="mit" if format == "gguf" else None)
    assert not list(tmp_path.glob("*.*"))


def test_a_weight_too_large_for_half_precision_is_named(corpus: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    model = model_of_minimind(tmp_path / "model", tokenizer)
    with torch.no_grad():
        model.model.norm.weight[0] = 1e6
    save_pretrained(model.state_dict(), model.config, tokenizer, tmp_path / "model")
    with pytest.raises(UserError, match=r"model\.norm\.weight: a weight is too large for f16: take --dtype bf16"):
        export_model(tmp_path / "model", tmp_path / "out", "hf", "f16")


def model_of_minimind(directory: Path, tokenizer: Tokenizer, heads: tuple[int, int] = (8, 2)) -> Transformer:
    """A small model in ``directory``; with 8 and 2 heads one whose shape a .pth tells."""
    config = ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=4,
    )
    model = Transformer(config, seed=2)
    save_pretrained(model.state_dict(), config, tokenizer, directory)
    return model


def test_what_a_model_knows_goes_with_its_export_and_not_with_the_next_ones(corpus: Path, tmp_path: Path) -> None:
    about, known, out = About("rivers", ("Where?",)), tmp_path / "known", tmp_path / "out"
    export_hf(corpus / "model", known)
    write_about(about, known)
    export_hf(known, out)
    assert about_model(out) == about
    export_hf(corpus / "model", out)
    assert about_model(out) is None


@pytest.mark.parametrize(("output", "written"), [("out", "out/model.pth"), ("out/sft_32.pth", "out/sft_32.pth")])
def test_pth_is_loaded_again_with_its_tokenizer(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, written: str
) -> None:
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    model = model_of_minimind(tmp_path / "model", tokenizer)
    words = ["export", str(tmp_path / "model"), "--format", "pth", "--output", str(tmp_path / output)]
    assert cli.run(words) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / written)
    loaded, beside = load_model(tmp_path / written)
    assert loaded.config == model.config and beside.fingerprint == tokenizer.fingerprint
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.half().float()), name


def test_pth_does_not_replace_another_tokenizer(corpus: Path, tmp_path: Path) -> None:
    model_of_minimind(tmp_path / "model", Tokenizer.load(corpus / "tokenizer"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.model").write_bytes(b"another")
    with pytest.raises(UserError, match="another tokenizer is there"):
        export_model(tmp_path / "model", tmp_path / "out", "pth", None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokenizer.model"]


def test_pth_refuses_a_shape_that_it_would_not_bring_back(corpus: Path, tmp_path: Path) -> None:
    model_of_minimind(tmp_path / "model", Tokenizer.load(corpus / "tokenizer"), heads=(4, 1))
    with pytest.raises(UserError, match=r"read with num_attention_heads 4 as 8.*--format hf"):
        export_model(tmp_path / "model", tmp_path / "out", "pth", None)
    assert not (tmp_path / "out").exists()


def test_gguf_takes_the_directory_or_the_name(corpus: Path, tmp_path: Path) -> None:
    reader = pytest.importorskip("gguf").GGUFReader
    assert export_model(corpus / "model", tmp_path, "gguf", None) == tmp_path / "model.gguf"
    named = tmp_path / "a" / "b.gguf"
    assert export_model(corpus / "model", named, "gguf", "f32") == named
    for file, kind in ((tmp_path / "model.gguf", 1), (named, 0)):
        fields = reader(file).fields
        assert fields["general.file_type"].contents() == kind
        assert fields["general.name"].contents() == "model"


@pytest.mark.parametrize("command", ["evaluate", "generate", "export", "serve"])
def test_no_model_there_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "evaluate": ["--file", "x"],
        "generate": ["--prompt", "x"],
        "export": ["--output", str(tmp_path / "o")],
        "serve": [],
    }
    assert cli.run([command, str(tmp_path / "nothing"), *options[command]]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_generate_prints_text(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["generate", str(corpus / "model"), "--prompt", "The river", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("The river")


def test_evaluate_prints_a_table_and_json(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(corpus / "model"), "--file", str(corpus / "texts.jsonl"), "--max-seq-length", str(ROW)]
    assert cli.run(words) == 0
    assert "perplexity" in capsys.readouterr().out
    assert cli.run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] > 0


def _record(run_dir: Path, **facts: Any) -> Path:
    run_dir.mkdir(exist_ok=True)
    (run_dir / "metrics.jsonl").write_bytes(to_line({"kind": "run", "step": 0, **facts}))
    return run_dir


def test_samples_of_a_step_are_those_the_ranks_were_given(corpus: Path, tmp_path: Path) -> None:
    store = prepare([corpus / "texts.jsonl"], Tokenizer.load(corpus / "tokenizer"), max_seq_length=ROW, workers=1)
    about = {"store": str(store), "seed": 7, "row_length": ROW, "micro_batch_size": 2, "accumulation": 2}
    run = _record(tmp_path / "run", **about, world_size=2, total_steps=20)
    opened = TokenStore.open(store)
    trained = Batches(opened, row_length=ROW, micro_batch_size=2, accumulation=2, world_size=2, seed=7)
    for step in (1, 5):
        sources = {opened.source(document) for document, _, _ in trained.documents(step - 1)}
        assert samples_of_step(run, step) == [f"{name}:{line}" for name, line in sorted(sources)]
    assert samples_of_step(run, 1) != samples_of_step(run, 5)


def test_samples_that_cannot_be_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        samples_of_step(tmp_path / "nothing", 1)
    with pytest.raises(UserError, match="does not say which store"):
        samples_of_step(_record(tmp_path / "old", total_steps=5), 1)
    gone = _record(tmp_path / "gone", store=str(tmp_path / "store"), seed=1, total_steps=5)
    with pytest.raises(UserError, match="the store is gone"):
        samples_of_step(gone, 1)
    step = {"micro_batch_size": 1, "accumulation": 1, "world_size": 1, "row_length": 8}
    there = _record(tmp_path / "there", store=str(tmp_path), seed=1, total_steps=5, **step)
    with pytest.raises(UserError, match="has 5 steps, not 6"):
        samples_of_step(there, 6)
