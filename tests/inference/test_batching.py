"""Continuous batching: answers that come and go are those made alone."""

from __future__ import annotations

import random

import pytest
import torch

from minimind.inference.answers import Piece, Question, Writer
from minimind.inference.batching import Batch
from minimind.inference.generation import generate
from minimind.inference.sampling import Sampling
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer


def questions(tokenizer: Tokenizer, count: int = 24) -> list[Question]:
    """Of all lengths and kinds of sampling, some of which end by themselves."""
    draw = random.Random(0)
    made = []
    for i in range(count):
        prompt = [tokenizer.bos_id, *draw.choices(range(6, tokenizer.vocab_size), k=draw.randint(0, 50))]
        sampling = Sampling(
            draw.randint(1, 40),
            temperature=draw.choice([0, 0.7, 1.5]),
            top_p=draw.choice([0.9, 1]),
            top_k=draw.choice([0, 20]),
            seed=i,
            repetition_penalty=draw.choice([1, 1.3]),
        )
        made.append(Question(prompt, sampling, draw.sample(range(300), k=3), top=draw.choice([None, 2])))
    return made


def made_alone(model: Transformer, tokenizer: Tokenizer, question: Question) -> Piece:
    batch = Batch(model, tokenizer)
    _, whole = batch.add(question)
    while batch.writers:
        ((_, piece),) = batch.step()
        whole += piece
    return whole


def made_together(
    model: Transformer, tokenizer: Tokenizer, asked: list[Question], draw: random.Random
) -> list[tuple[Question, Piece]]:
    """They come in any order, at any time."""
    batch, waiting = Batch(model, tokenizer), list(asked)
    answers: dict[Writer, Piece] = {}
    most = 0
    while waiting or batch.writers:
        while waiting and draw.random() < 0.5 and batch.has_room(waiting[0]):
            writer, piece = batch.add(waiting.pop(0))
            answers[writer] = piece
        most = max(most, len(batch.writers))
        for writer, piece in batch.step() if batch.writers else []:
            answers[writer] += piece
    assert most > 3
    return [(writer.question, answer) for writer, answer in answers.items()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_answer_is_the_same_beside_others_as_alone(
    model: Transformer, tokenizer: Tokenizer, dtype: torch.dtype
) -> None:
    """To the bit of its probabilities."""
    rounded = Transformer(model.config, seed=1).eval()
    rounded.load_state_dict({name: value.to(dtype).float() for name, value in model.state_dict().items()})
    rounded.output_size = tokenizer.vocab_size
    asked = questions(tokenizer)
    alone = {id(question): made_alone(rounded, tokenizer, question) for question in asked}
    for question, together in made_together(rounded, tokenizer, asked, random.Random(1)):
        assert together == alone[id(question)]


def test_an_answer_is_what_generate_makes(model: Transformer, tokenizer: Tokenizer) -> None:
    model.output_size = tokenizer.vocab_size
    for question in questions(tokenizer, 8):
        expected = list(generate(model, question.prompt, question.sampling, stop_ids=question.stop_ids))
        answer = made_alone(model, tokenizer, question)
        assert (answer.text, answer.tokens) == (tokenizer.decode(expected), len(expected))
        assert answer.finish == ("length" if len(expected) == question.room(100) else "stop")
