"""The ``samples:`` section."""

import pytest

from minimind.base.errors import UserError
from minimind.config.run import load_run_config
from minimind.config.samples import SamplesConfig


def test_a_prompt_or_a_list_of_them_is_enough() -> None:
    assert load_run_config(None).samples == SamplesConfig()
    assert load_run_config(None, ["samples="]).samples == SamplesConfig()
    assert load_run_config(None, ["samples=The sea"]).samples.prompts == ["The sea"]
    whole = load_run_config(None, ["samples={prompts: one, max_new_tokens: 8, temperature: 0.5, seed: 2}"]).samples
    assert (whole.prompts, whole.max_new_tokens, whole.temperature, whole.seed) == (["one"], 8, 0.5, 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("samples=[a, ' ']", "samples"),
        ("samples=3", "samples"),
        (f"samples=[{', '.join(['a'] * 33)}]", "at most 32 items"),
        ("samples={prompts: a, max_new_tokens: 5000}", "less than or equal to 1024"),
        ("samples={prompt: a}", 'unknown key "prompt" (did you mean "prompts"?)'),
    ],
)
def test_what_is_wrong_is_said(text: str, reason: str) -> None:
    with pytest.raises(UserError, match="samples") as error:
        load_run_config(None, [text])
    assert reason in str(error.value)


def test_they_need_evaluations() -> None:
    with pytest.raises(UserError, match="samples are written at evaluations, and eval_strategy is no"):
        load_run_config(None, ["samples=a", "eval_strategy=no"])
