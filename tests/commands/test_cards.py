"""The table of cards: each number worked out another way, and n/a for what nobody knows."""

from pathlib import Path

import pytest

from minimind.base.errors import UserError
from minimind.base.hardware import Hardware
from minimind.commands import plan
from minimind.commands.cards import (
    CARDS,
    Measured,
    Question,
    advised_rows,
    card_table,
    fitting_rows,
    shipped_form,
    update_line,
)
from minimind.commands.plan import Table, parse_tokens, run_plan
from minimind.config.memory import RESERVE, estimate_memory, table_state_bytes
from minimind.config.run import load_run_config

CONFIGS = Path(__file__).parents[2] / "ds_configs"
RUN = load_run_config(None)
FLOPS = 167.6e6
CPU = Hardware("cpu", fp16=False, bf16=False, name="CPU", memory=16 * 10**9)


def question(ranks: int = 1, tokens: float | None = 330e6, launches: int = 1500, mfu: float = 0.25) -> Question:
    return Question(RUN, ranks, tokens, FLOPS, launches, mfu)


def cells(lines: list[str], name: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(name)]
    return line.removeprefix(name).split()


def test_hours_are_the_formula_of_the_documentation() -> None:
    lines = card_table(question(), None, {})
    assert cells(lines, "RTX 3090")[-2:] == ["0.87", "1.7"]  # 52 minutes at 71 TFLOP/s, twice that at 35.6
    assert cells(card_table(question(mfu=0.5), None, {}), "RTX 3090")[-2] == "0.43"
    assert any("330,000,000 tokens at 25% of the card's peak (assumed" in line for line in lines)
    assert [line.split("  ")[0] for line in lines[-len(CARDS) :]] == list(CARDS)


def test_what_nobody_knows_is_not_printed() -> None:
    assert cells(card_table(question(tokens=None), None, {}), "H200")[-2:] == ["n/a", "n/a"]
    assert cells(card_table(question(ranks=8), None, {}), "H200")[-2:] == ["n/a", "n/a"]
    here = cells(card_table(question(), CPU, {}), "this machine")
    assert here[:2] == ["16", "GB"]
    assert here[-3:] == ["n/a", "n/a", "n/a"]  # not measured
    assert advised_rows(question(), "another card", 100) == "n/a"
    unknown = Hardware("cuda", True, True, "GPU", None)
    assert cells(card_table(question(), unknown, {}), "this machine")[0] == "n/a"


def test_this_machine_has_what_was_measured() -> None:
    lines = card_table(question(), CPU, {"fp32": Measured(1e5, 4), "bf16": Measured(5e4, 2)})
    assert cells(lines, "this machine")[-3:] == ["4", "1.8", "0.92"]
    offloads = [cells(lines, "this machine")[i] for i in (5, 7)]
    assert offloads == ["n/a", "n/a"]  # they save nothing on a CPU


def test_what_fits_is_the_last_that_fits() -> None:
    card = Hardware("cuda", True, True, "RTX 3090", 24 * 10**9)
    for form in ("fp32", "bf16_zero2_offload", "bf16_zero3"):
        rows, resolved = fitting_rows(question(), form, card), shipped_form(question(), form, card)
        assert rows and resolved and card.memory
        each = table_state_bytes(resolved.optimizer, RUN.model)
        fits = [estimate_memory(RUN, resolved, n, each).peak + RESERVE <= card.memory for n in (rows, rows + 1)]
        assert fits == [True, False]
    large = Question(load_run_config(None, ["model=1.1b"]), 1, None, FLOPS, 1)
    assert fitting_rows(large, "fp32", Hardware("cuda", True, True, "small", 8 * 10**9)) == 0
    assert "no" in card_table(large, Hardware("cuda", True, True, "small", 8 * 10**9), {})[-1].split()


def test_rows_keep_a_card_longer_busy_than_its_launches() -> None:
    row = 512 * FLOPS / (0.25 * 989.4e12)  # seconds on an H200
    rows = int(advised_rows(question(), "H200", 10**6))
    assert rows == 32 and rows * row >= 1500 * 5e-6 > rows / 2 * row  # eight are bound by launches
    assert advised_rows(question(), "RTX 3090", 10**6) == "8"  # the usual
    assert advised_rows(question(), "H200", 20) == "16"  # no more than fit
    assert advised_rows(question(), "H200", 0) == "n/a"


def test_an_offloaded_update_stands_beside_the_step() -> None:
    line = update_line(question(), 0.1)
    assert "update takes 100 ms on this machine's CPU (measured), beside 11 ms for a step of 32 rows" in line
    assert "90% of the time" in line


@pytest.mark.parametrize(("text", "count"), [("330M", 330e6), ("1.5b", 1.5e9), ("2e9", 2e9), ("10", 10), ("2G", 2e9)])
def test_tokens(text: str, count: float) -> None:
    assert parse_tokens(text) == count


@pytest.mark.parametrize("text", ["", "many", "0", "-3M", "1.2.3M", "1e99"])
def test_wrong_tokens(text: str) -> None:
    with pytest.raises(UserError, match="expected a number like 330M"):
        parse_tokens(text)


def test_the_plan_ends_with_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "TABLE_SECONDS", 0.01)
    settings = ["model=tiny", "model.vocab_size=256", "max_seq_length=32", "max_steps=100"]
    assert run_plan(CONFIGS / "fp32.json", None, settings, wanted=Table(measure=True)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("offload: AdamW's update takes")
    here = cells(lines, "this machine")
    assert here[-3].isdigit() and here[-1] != "n/a"
    assert any("25,600 tokens at" in line for line in lines)  # 100 steps of eight rows of 32
    assert run_plan(CONFIGS / "fp32.json", None, settings, "24GiB", wanted=Table(tokens=1e9)) == 0
    out = capsys.readouterr().out
    assert "this machine" not in out and "1,000,000,000 tokens at" in out
