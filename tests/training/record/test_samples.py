"""``samples:`` in whole runs on tiny data: what is written, and that training is bit for bit what it is without."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.commands.page.payload import samples
from minimind.inference.generation import generate
from minimind.inference.loading import load_model
from minimind.inference.sampling import Sampling
from minimind.text.chat import Turn, prompt_ids
from minimind.training.record.samples import Sampler, cut_back
from minimind.training.run import loop
from tests.support import DS_CONFIGS, run_ranks, tiny_config
from tests.training.run.test_main import _one_rank_with_its_signals as _signals  # noqa: F401 (an autouse fixture)
from tests.training.run.test_main import curve, launch, records

PROMPTS = ["river 小猫", "little"]
ASKED = ("--set", f"samples={{prompts: {json.dumps(PROMPTS, ensure_ascii=False)}, max_new_tokens: 6}}")
SHORT = ("--max-steps", "4", "--set", "eval_steps=2")


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_model(out)[0].state_dict()


def assert_same_training(left: Path, right: Path) -> None:
    assert curve(left) == curve(right)
    ours, theirs = weights(left), weights(right)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_each_evaluation_answers_each_prompt(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("pretrain", "fp32.json", files, tmp_path / "with", *SHORT, *ASKED) == 0
    out = capsys.readouterr().out
    assert "2 prompts, 12 tokens at most, generated on rank 0 after each evaluation" in out
    assert "after step 4  texts 2 in samples.jsonl" in out
    found = rows(tmp_path / "with")
    assert [(row["step"], row["prompt"]) for row in found] == [(step, p) for step in (2, 4) for p in PROMPTS]
    assert samples(tmp_path / "with") == sorted(found, key=lambda row: (row["step"], row["prompt"]))
    model, tokenizer = load_model(tmp_path / "with")
    greedy = Sampling(6, temperature=0.0, top_p=1.0)
    for row in found[2:]:
        ids = [tokenizer.bos_id, *tokenizer.encode(row["prompt"])]
        assert row["text"] == tokenizer.decode(list(generate(model, ids, greedy, stop_ids=[tokenizer.eos_id])))
    (first, _) = records(tmp_path / "with", "samples")
    assert (first["step"], first["texts"]) == (2, 2)
    assert launch("pretrain", "fp32.json", files, tmp_path / "without", *SHORT) == 0
    assert not (tmp_path / "without" / "samples.jsonl").exists()
    assert_same_training(tmp_path / "with", tmp_path / "without")


def test_a_resumed_run_samples_and_trains_as_one_that_went_through(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = ("--set", "samples.temperature=1.0", "--set", "samples.seed=3")
    assert launch("pretrain", "bf16.json", files, tmp_path / "whole", *SHORT, *ASKED, *drawn) == 0
    original = loop.save

    def stop_after_three(run: loop.Run, best: bool = False) -> None:
        original(run, best)
        run.stop.requested = run.stop.requested or run.progress.step == 2

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", stop_after_three)
        assert launch("pretrain", "bf16.json", files, tmp_path / "parts", *SHORT, *ASKED, *drawn) == 0
    with (tmp_path / "parts" / "samples.jsonl").open("a") as file:  # of a course that is not gone on with
        file.write('{"step": 4, "prompt": "little", "text": "another"}\n{"step": 2, "pro')
    assert launch("pretrain", "bf16.json", files, tmp_path / "parts", *SHORT, *ASKED, *drawn, "--resume") == 0
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert_same_training(tmp_path / "parts", tmp_path / "whole")
    assert launch("pretrain", "bf16.json", files, tmp_path / "whole", *SHORT, *ASKED) == 0  # another run there
    assert len(rows(tmp_path / "whole" / "earlier-1")) == len(rows(tmp_path / "whole")) == 4


def two_ranks(files: dict[str, Path], json_file: Path, out: Path) -> list[int]:
    runs = (("with", ASKED), ("without", ()))
    return [launch("pretrain", str(json_file), files, out / name, *SHORT, *more) for name, more in runs]


def test_weights_that_are_split_over_ranks_are_gathered(files: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads((DS_CONFIGS / "bf16_zero3.json").read_text())
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0  # nothing stays whole
    config["train_micro_batch_size_per_gpu"] = 2
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert run_ranks(2, two_ranks, files, tmp_path / "ds.json", tmp_path) == [[0, 0], [0, 0]]
    assert_same_training(tmp_path / "with", tmp_path / "without")
    model, tokenizer = load_model(tmp_path / "with")
    last = rows(tmp_path / "with")[-1]
    ids = [tokenizer.bos_id, *tokenizer.encode(last["prompt"])]
    greedy = Sampling(6, temperature=0.0, top_p=1.0)
    assert last["text"] == tokenizer.decode(list(generate(model, ids, greedy, stop_ids=[tokenizer.eos_id])))


def test_in_sft_a_prompt_is_a_question(files: dict[str, Path]) -> None:
    from minimind.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(files["tokenizer"])
    sampler = Sampler(tiny_config("samples=Who?"), tokenizer, "sft")
    assert sampler._ids == [prompt_ids([Turn("user", "Who?")], tokenizer)]
    assert sampler._stops == tokenizer.stop_ids


def test_a_prompt_that_fills_the_context_is_refused_before_training(files: dict[str, Path], tmp_path: Path) -> None:
    long = ("--set", f"samples={'river ' * 200}", "--set", "model.max_position_embeddings=64")
    with pytest.raises(UserError, match=r"--set samples=.*: the prompt 'river river river ri' has \d+ tokens, .* 64"):
        launch("pretrain", "fp32.json", files, tmp_path, *SHORT, *long)


def test_what_can_not_be_written_ends_no_run(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "samples.jsonl").symlink_to(tmp_path / "elsewhere")
    original = loop.write_samples

    def after_a_link_was_set(run: loop.Run) -> None:
        (tmp_path / "out" / "samples.jsonl").unlink(missing_ok=True)
        (tmp_path / "out" / "samples.jsonl").symlink_to(tmp_path / "elsewhere")
        original(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "write_samples", after_a_link_was_set)
        assert launch("pretrain", "fp32.json", files, tmp_path / "out", *SHORT, *ASKED) == 0
    assert "samples-not-written" in [finding["code"] for finding in records(tmp_path / "out", "finding")]
    assert not (tmp_path / "elsewhere").exists()


def test_without_evaluations_the_header_says_that_there_are_none(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from minimind.training.run.arguments import parse
    from minimind.training.run.main import run
    from tests.training.run.test_main import SMALL

    words = ["--deepspeed_config", str(DS_CONFIGS / "fp32.json"), "--output-dir", str(tmp_path), *SMALL, *ASKED]
    words += ["--train-file", str(files["pretrain"]), "--tokenizer", str(files["tokenizer"]), "--max-steps", "1"]
    assert run("pretrain", parse("pretrain", words)) == 0
    assert "none, for they are written at evaluations: give --eval-file" in capsys.readouterr().out


def test_what_is_cut_back_is_whole_rows_up_to_the_step(tmp_path: Path) -> None:
    cut_back(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "samples.jsonl").write_text('{"step": 3}\nx\n{"step": 4}\n{"step": true}\n{"step": 1}\n{"step": 2')
    cut_back(tmp_path, 3)
    assert (tmp_path / "samples.jsonl").read_text() == '{"step": 3}\n{"step": 1}\n'
