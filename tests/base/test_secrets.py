"""Secrets in command lines, settings and messages."""

from __future__ import annotations

import pytest

from minimind.base.secrets import mask_command, mask_text, mask_values, names_secret


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["--api-key", "s3"], ["--api-key", "***"]),
        (["--api-key=s3", "x"], ["--api-key=***", "x"]),
        (["--set", "wandb_api_key=s3"], ["--set", "wandb_api_key=***"]),
        (["--set", "a.token=s=3"], ["--set", "a.token=***"]),
        (["--hf-token", "s3", "--max-steps", "4"], ["--hf-token", "***", "--max-steps", "4"]),
        (["--token", "--quiet", "x"], ["--token", "--quiet", "x"]),
        (["HF_TOKEN=s3", "--password=x"], ["HF_TOKEN=***", "--password=***"]),
        (["https://me:pw@host/x"], ["https://***@host/x"]),
        (["--set", f"run_name=hf_{'a' * 34}"], ["--set", "run_name=***"]),
        (["--tokenizer", "runs/t", "--set", "max_tokens=3"], ["--tokenizer", "runs/t", "--set", "max_tokens=3"]),
    ],
)
def test_a_command_line(words: list[str], masked: list[str]) -> None:
    assert mask_command(words) == masked


def test_names() -> None:
    assert all(map(names_secret, ("api_key", "apiKey", "WANDB_API_KEY", "hf.token", "--password", "client-secret")))
    harmless = ("tokenizer", "max_tokens", "monkey", "keys", "tokens_per_second", "bypass", "hidden_size")
    assert not any(map(names_secret, harmless))


def test_values_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"comet": {"api_key": "s3", "project": "p"}, "list": [{"token": "s3"}], "key": 3}
    assert mask_values(settings) == {"comet": {"api_key": "***", "project": "p"}, "list": [{"token": "***"}], "key": 3}
    monkeypatch.setenv("WANDB_API_KEY", "local-0123456789")
    assert mask_text("401 for local-0123456789, Bearer abc or " + "0" * 40) == "401 for ***, Bearer *** or ***"
