"""launch/lr_sweep.py on tiny data through real DeepSpeed: one start, one order of data, and what it leaves behind."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minimind.base.errors import UserError
from minimind.config.deepspeed import resolve
from minimind.training.engine.engine import Engine
from minimind.training.process.run_lock import RunLock
from minimind.training.sweep import sweep as lr_sweep
from minimind.training.sweep.options import choose_rates, parse, rates_at, with_rate
from minimind.training.sweep.sweep import main, rising, run
from tests.support import CPU, DS_CONFIGS, run_ranks, tiny_config

MODEL = (
    "model={vocab_size: 400, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 8, intermediate_size: 64}"
)


@pytest.fixture(autouse=True)
def _its_signals() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def words(name: str | Path, files: dict[str, Path], out: Path, *more: str) -> list[str]:
    given = ["--deepspeed_config", str(DS_CONFIGS / name), "--train-file", str(files["pretrain"])]
    given += ["--tokenizer", str(files["tokenizer"]), "--output-dir", str(out), "--emulate-fp16"]
    return [*given, "--set", MODEL, "--set", "max_seq_length=48", *more]


def launch(name: str | Path, files: dict[str, Path], out: Path, *more: str) -> int:
    return run(parse(words(name, files, out, *more)))


def result(out: Path, name: str = "lr_sweep") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / f"{name}.json").read_text(), parse_constant=pytest.fail)
    return content


@pytest.mark.parametrize("name", ["fp32.json", "fp16_zero2.json", "muon.json"])
def test_a_sweep_recommends_the_rate_that_learns(
    name: str, one_rank: None, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(name, files, tmp_path, "--learning-rates", "1e-6,1e-2,10", "--steps", "20") == 0
    found = result(tmp_path)
    small, good, wild = found["verdicts"]
    assert (small["stable"], good["stable"], wild["stable"]) == (True, True, False)
    assert small["start"] == good["start"] == wild["start"]  # one initialisation, one order of data
    assert good["smoothed_end"] < small["smoothed_end"] - 0.5
    assert found["recommendation"]["rate"] == 1e-2
    assert [len(curve["losses"]) for curve in found["curves"]][:2] == [20, 20]
    assert (tmp_path / "lr_sweep.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "recommended: " in printed and "usual band: " in printed and "worst spike" in printed
    wanted = {"lr": 1e-2, "muon_lr": pytest.approx(1e-2 * 0.02 / 3e-3)} if name == "muon.json" else {"lr": 1e-2}
    assert found["recommendation"]["settings"] == wanted


def test_a_directory_that_another_run_holds_is_refused(one_rank: None, files: dict[str, Path], tmp_path: Path) -> None:
    with RunLock() as other:
        other.take(tmp_path)
        (tmp_path / "config.yaml").write_text("theirs")
        with pytest.raises(UserError, match="is writing there"):
            launch("fp32.json", files, tmp_path, "--learning-rates", "1e-3,1e-2", "--steps", "20")
        assert (tmp_path / "config.yaml").read_text() == "theirs"


def test_a_run_of_the_sweep_equals_a_training_run(one_rank: None, files: dict[str, Path], tmp_path: Path) -> None:
    """The same JSON, rate, warmup and data through launch/pretrain.py: bitwise the same losses."""
    from minimind.training.run import arguments
    from minimind.training.run import main as pretraining

    launch("bf16.json", files, tmp_path / "sweep", "--learning-rates", "2e-3,4e-3", "--steps", "10")
    settings = ["lr_scheduler_type=constant", "min_lr_ratio=1", "warmup_steps=1", "save_steps=10"]
    more = [word for setting in settings for word in ("--set", setting)]
    given = words("bf16.json", files, tmp_path / "run", "--max-steps", "10", *more)
    assert pretraining.run("pretrain", arguments.parse("pretrain", given)) == 0
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [line["loss"] for line in lines if line["kind"] == "train"] == result(tmp_path / "sweep")["curves"][0][
        "losses"
    ]


def test_all_diverging_recommends_none_and_exits_1(
    one_rank: None, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("fp32.json", files, tmp_path, "--learning-rates", "10,100", "--steps", "20") == 1
    assert result(tmp_path)["recommendation"]["rate"] is None
    printed = capsys.readouterr().out
    assert "recommended: none" in printed and "every rate diverged" in printed


def test_the_range_test_raises_the_rate_and_recommends_before_the_turn(
    one_rank: None, files: dict[str, Path], tmp_path: Path
) -> None:
    assert launch("fp32.json", files, tmp_path, "--range-test", "--from", "1e-5", "--to", "10", "--steps", "60") == 0
    found = result(tmp_path, "lr_range_test")
    (curve,) = found["curves"]
    assert curve["rates"][:3] == pytest.approx([1e-5 * (1e6 ** (t / 59)) for t in range(3)])
    lowest = curve["rates"][curve["losses"].index(min(curve["losses"]))]
    assert 1e-4 < found["recommendation"]["rate"] < lowest
    assert (tmp_path / "lr_range_test.png").exists() and found["verdicts"] == []


def test_every_engine_is_closed_and_a_stop_keeps_what_is_done(
    one_rank: None, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, updates = [], []
    close, update = Engine.close, Engine.update

    def counting_update(self: Engine) -> Any:
        updates.append(1)
        if len(updates) == 23:  # in the third run
            signal.raise_signal(signal.SIGTERM)
        return update(self)

    monkeypatch.setattr(Engine, "close", lambda self: (closed.append(1), close(self)))
    monkeypatch.setattr(Engine, "update", counting_update)
    launch("fp32.json", files, tmp_path, "--learning-rates", "1e-3,3e-3,1e-2,3e-2", "--steps", "10")
    assert [curve["rate"] for curve in result(tmp_path)["curves"]] == [1e-3, 3e-3]
    assert len(closed) == 3 and len(updates) == 24


def test_a_json_with_a_scheduler_and_auto_rate_is_swept_without_it(
    one_rank: None, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.json"
    own.write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 4,
                "gradient_clipping": 1.0,
                "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
                "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 100, "warmup_num_steps": 50}},
            }
        )
    )
    run_config = tmp_path / "run.yaml"
    run_config.write_text("learning_rate: 4e-3\n")
    more = ["--learning-rates", "1e-3,1e-2", "--steps", "10", "--config", str(run_config)]
    assert launch(own, files, tmp_path, *more) == 0
    slow, fast = result(tmp_path)["verdicts"]
    assert fast["end"] < slow["end"] - 0.2  # WarmupCosineLR would still be near rate 0
    assert "WarmupCosineLR is left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "which rates"),
        (["--from", "1e-3"], "which rates"),
        (["--from", "1e-2", "--to", "1e-3"], "--to above --from"),
        (["--from", "1e-3", "--to", "1e-2", "--count", "1"], "at least 2 rates"),
        (["--learning-rates", "1e-3"], "at least two different"),
        (["--learning-rates", "1e-3,-1"], "above 0"),
        (["--learning-rates", "1e-3,fast"], "expected numbers"),
        (["--learning-rates", "1e-3,1e-2", "--to", "1"], "neither --from"),
        (["--learning-rates", "1e-3,1e-2", "--range-test"], "neither --from"),
        (["--learning-rates", "1e-3,1e-2", "--steps", "3"], "at least 10"),
    ],
)
def test_rates_that_make_no_sense_are_refused(more: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_rates(parse(["--deepspeed_config", "x.json", *more]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--learning-rates", "1e-3"], "at least two different"),
        (
            ["--learning-rates", "1e-3,1e-2", "--set", "learning_rate=5"],
            "--set learning_rate=5: a sweep sets the rates itself",
        ),
        (["--learning-rates", "1e-3,1e-2", "--train-file", "no/such.jsonl"], "no/such.jsonl"),
        (["--learning-rates", "1e-3,1e-2", "--set", "model_name_or_path=no/such"], "no/such: no such directory"),
        (["--learning-rates", "1e-3,1e-2", "--output-dir", "/dev/null/x"], "can't write there"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    more: list[str],
    message: str,
    one_rank: None,
    files: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words("fp32.json", files, tmp_path, *more))
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert re.search(message, errors)


@pytest.mark.parametrize("path", sorted(DS_CONFIGS.glob("*.json")), ids=lambda path: path.name)
def test_every_shipped_json_can_be_put_at_another_rate(path: Path) -> None:
    base = resolve(path, tiny_config(), 1, CPU, emulate_fp16=True)
    edited = with_rate(base, 7e-5)
    assert edited.optimizer.params == {**base.optimizer.params, **rates_at(base.optimizer.params, 7e-5)}
    assert edited.optimizer.params["lr"] == 7e-5 and edited.config == base.config


def test_a_json_without_an_optimizer_section_gets_one() -> None:
    values = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0}
    base = resolve(values, tiny_config("weight_decay=0.3", "learning_rate=0.5"), 1, CPU)
    edited = with_rate(base, 7e-5)
    assert edited.optimizer.params == {**base.optimizer.params, "lr": 7e-5}
    assert base.optimizer.params["lr"] == 0.5  # the original is left alone


def test_muon_rates_move_together() -> None:
    assert rates_at({"lr": 1e-3, "muon_lr": 0.02, "adam_lr": 2e-3}, 4e-3) == {
        "lr": 2e-3,
        "muon_lr": 0.04,
        "adam_lr": 4e-3,
    }


def test_the_rising_factor_goes_from_low_to_high() -> None:
    factor = rising(1e-6, 1.0, 101)
    assert [factor(0), factor(50), factor(100), factor(200)] == pytest.approx([1e-6, 1e-3, 1.0, 1.0])


def _on_a_rank(given: list[str]) -> int:
    return lr_sweep.run(parse(given))


@pytest.mark.slow
def test_two_ranks_find_what_one_finds(one_rank: None, files: dict[str, Path], tmp_path: Path) -> None:
    rates = ["--learning-rates", "1e-6,1e-2", "--steps", "10"]
    two = words("fp32.json", files, tmp_path / "two", *rates, "--set", "per_device_train_batch_size=4")
    assert run_ranks(2, _on_a_rank, two) == [0, 0]
    one = words("fp32.json", files, tmp_path / "one", *rates, "--set", "per_device_train_batch_size=8")
    assert run(parse(one)) == 0
    losses = [[curve["losses"] for curve in result(tmp_path / name)["curves"]] for name in ("one", "two")]
    for alone, together in zip(*losses, strict=True):
        assert together == pytest.approx(alone, rel=1e-5)
