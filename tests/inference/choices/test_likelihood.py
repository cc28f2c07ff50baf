"""Log-likelihoods against a slow reference: transformers on the export, one choice at a time."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from minimind.base.errors import UserError
from minimind.config.model import ModelConfig
from minimind.inference.choices import likelihood
from minimind.inference.choices.likelihood import Row, log_likelihoods, rows_of, tokens_of
from minimind.inference.choices.questions import Question
from minimind.inference.loading import load_model
from minimind.interop.huggingface import save_pretrained
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

POSITIONS = 48
WORDS = ["river", "stone", "little", "house", "walks", "到", "山上", "小猫", "看见", "朋友", "sings", "bright"]


@pytest.fixture(scope="module")
def exported(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose choices differ clearly."""
    tokenizer = Tokenizer.load(files["tokenizer"])
    config = ModelConfig(
        vocab_size=400,  # more rows than the tokenizer has pieces
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=POSITIONS,
    )
    model = Transformer(config, seed=1)
    weights = {name: value * (6 if value.dim() == 2 else 1) for name, value in model.state_dict().items()}
    directory = tmp_path_factory.mktemp("choices") / "model"
    save_pretrained(weights, config, tokenizer, directory)
    return directory


def some_questions(count: int, seed: int = 0) -> list[Question]:
    """Of one to 60 words, with choices of one to nine; some contexts end with spaces, some choices are alike."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        context = " ".join(draw.choices(WORDS, k=draw.choice([1, 5, 20, 60]))) + draw.choice(["", " ", "\n答案："])
        choices = tuple(" ".join(draw.choices(WORDS, k=draw.choice([1, 2, 9]))) for _ in range(draw.randint(2, 5)))
        found.append(Question("q", number, "s", context, choices, 0))
    return [*found, Question("q", count, "s", "Pick", ("A", "B", "C", "D"), 1)]


def by_transformers(directory: Path, questions: list[Question]) -> list[list[float]]:
    """The sum of the log-probabilities of what context and choice have more tokens than the context."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)

    def nats(question: Question, choice: str) -> float:
        whole = tokenizer.encode(f"{question.context} {choice}")
        own = len(whole) - len(tokenizer.encode(question.context.rstrip()))
        kept = torch.tensor([whole[-(POSITIONS + 1) :]])
        with torch.no_grad():
            logs = model(kept[:, :-1]).logits[0].double().log_softmax(-1)
        return float(sum(logs[place - 1, kept[0, place]] for place in range(kept.shape[1] - own, kept.shape[1])))

    return [[nats(question, choice) for choice in question.choices] for question in questions]


def ours(directory: Path, questions: list[Question]) -> list[list[float]]:
    model, tokenizer = load_model(directory)
    rows = [r for n, q in enumerate(questions) for r in rows_of(n, *tokens_of(q, tokenizer), POSITIONS)]
    found = log_likelihoods(model, rows)
    return [[found[n, place] for place in range(len(q.choices))] for n, q in enumerate(questions)]


def test_they_are_those_of_transformers_on_the_export(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(likelihood.BATCH_TOKENS, "cpu", 512)  # several batches, some of several rows
    questions = some_questions(40)
    _, tokenizer = load_model(exported)
    rows = [rows_of(n, *tokens_of(q, tokenizer), POSITIONS) for n, q in enumerate(questions)]
    assert {len(own) > 1 for own in rows} == {True, False}  # some are cut
    expected, found = by_transformers(exported, questions), ours(exported, questions)
    for left, right in zip(expected, found, strict=True):
        assert right == pytest.approx(left, rel=1e-4, abs=1e-3)
        assert left.index(max(left)) == right.index(max(right))
    assert max(max(own) - min(own) for own in found) > 10  # the comparison can tell choices apart


def test_a_question_scores_as_if_alone(exported: Path) -> None:
    questions = some_questions(12, seed=3)
    alone = list(itertools.chain(*(ours(exported, [question]) for question in questions)))
    for left, right in zip(alone, ours(exported, questions), strict=True):
        assert right == pytest.approx(left, rel=1e-5)


def test_a_context_is_read_once_for_all_its_choices() -> None:
    (row,) = rows_of(7, [1] * 60, [[2] * 20] * 4, limit=128)
    assert (row.size, row.places) == (60 + 4 * 19, [(7, 0), (7, 1), (7, 2), (7, 3)])
    cut = rows_of(7, list(range(60)), [[2] * 20, [3]], limit=50)
    assert [(row.context[0], row.size) for row in cut] == [(29, 50), (10, 50)]


def test_a_choice_without_a_token_of_its_own_is_named() -> None:
    class Melting:
        bos_id = 1

        def encode(self, text: str) -> list[int]:
            return [5]

    question = Question("q.jsonl", 4, "s", "Q", ("a", "b"), 0)
    with pytest.raises(UserError, match=r"q\.jsonl:4: a choice melts"):
        tokens_of(question, Melting())  # type: ignore[arg-type]


def test_broken_weights_have_no_score(exported: Path) -> None:
    model, _ = load_model(exported)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="NaN"):
        log_likelihoods(model, [Row([1, 2], [[3], [4]], [(0, 0), (0, 1)])])
