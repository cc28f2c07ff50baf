"""``minimind evaluate --task``: multiple choice by log-likelihood (docs/evaluation.md)."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minimind.base.errors import UserError
from minimind.base.files import replacing
from minimind.data.records.options import BY_CONTENT, READING, ReadingOptions

if TYPE_CHECKING:
    from minimind.data.records.rejects import Tally
    from minimind.inference.choices.questions import Question
    from minimind.inference.choices.scores import Answered
    from minimind.model.transformer import Transformer
    from minimind.text.tokenizer import Tokenizer

_SAY_EVERY = 2000  # rows


def evaluate_tasks(
    path: Path,
    files: Sequence[Path],
    *,
    reading: ReadingOptions = BY_CONTENT,
    tokenizer_path: Path | None = None,
    items: Path | None = None,
    shots: int = 0,
    examples: Sequence[Path] = (),
) -> dict[str, Any]:
    """Scores of the model at ``path``: those of all questions, and under ``subjects`` of each. ``cut``: questions whose
    context had to lose its beginning. ``items``: a JSON Lines file to write each question's numbers to. ``shots``: so
    many answered questions out of ``examples`` stand before each.

    Raises UserError for a missing model, for bad rows with file:line (with ``skip_bad``: too many), and for options of
    texts.
    """
    import torch

    from minimind.inference.choices.scores import by_subject, score
    from minimind.inference.choices.shots import with_examples
    from minimind.inference.loading import load_model

    if words := reading.words(tuple(name for name in READING if name != "encoding")):
        raise UserError(f"{words[0]} is for --file: a task's format is told by its fields (docs/evaluation.md)")
    questions = read_questions(files, reading)
    if shots:
        questions = with_examples(questions, read_questions(examples, reading), shots)
    model, tokenizer = load_model(path, "cuda" if torch.cuda.is_available() else "cpu", tokenizer=tokenizer_path)
    answers, cut = _answers(model, tokenizer, questions)
    if items is not None:
        _write_items(items, answers)
    return {**score(answers), "cut": cut, "subjects": by_subject(answers)}


def read_questions(files: Sequence[Path], reading: ReadingOptions = BY_CONTENT) -> list[Question]:
    """Every question in ``files`` (files, directories, globs, ``-``), in order. UserError as for `evaluate_tasks`."""
    from minimind.data.records.rejects import Tally
    from minimind.data.store.prepare import say_on_stderr
    from minimind.data.store.rooms import default_cache, room

    name = hashlib.sha256("\n".join(map(str, files)).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    quarantine = room(default_cache(), "stores") / f"task-{name}.rejected.jsonl"
    tally = Tally(reading.skip_bad, reading.max_bad_ratio, quarantine)
    questions = list(_questions(files, tally, reading.encoding))
    if tally.total.rejected:
        say_on_stderr(f"  {tally.total.rejected:,} bad rows left out, see {quarantine}")
    return questions


def _questions(files: Sequence[Path], tally: Tally, encoding: str | None) -> Iterator[Question]:
    from minimind.data.read.sources import expand, read_chunks
    from minimind.data.records.encoding import Encoded, Reject
    from minimind.inference.choices.questions import question_of

    with tempfile.TemporaryDirectory() as spool, tally:
        for source in expand(files, Path(spool))[0]:
            seen = Encoded()
            for chunk in read_chunks(source, None, encoding):
                found = [question_of(record) for record in chunk.records()]
                seen.rejects[:] = [one for one in found if isinstance(one, Reject)]
                seen.counts.records += len(found)
                seen.counts.rejected += len(seen.rejects)
                seen.counts.used += len(found) - len(seen.rejects)
                tally.add(seen, seen.counts)
                yield from (one for one in found if not isinstance(one, Reject))
            tally.finish_source(source.name, seen.counts)


def _answers(model: Transformer, tokenizer: Tokenizer, questions: Sequence[Question]) -> tuple[list[Answered], int]:
    """Each question answered, in order, and how many contexts were cut."""
    from minimind.data.store.prepare import say_on_stderr
    from minimind.inference.choices.likelihood import log_likelihoods, rows_of, tokens_of
    from minimind.inference.choices.scores import Answered

    limit = model.config.max_position_embeddings
    encoded = [tokens_of(question, tokenizer) for question in questions]
    for question, (_, choices) in zip(questions, encoded, strict=True):
        if max(map(len, choices)) > limit:
            raise UserError(f"{question}: a choice has {max(map(len, choices))} tokens, the model's limit is {limit}")
    by_question = [rows_of(index, *pair, limit) for index, pair in enumerate(encoded)]
    rows = [row for own in by_question for row in own]
    say = _progress(len(rows), say_on_stderr)
    nats = log_likelihoods(model, rows, say)
    answers = [
        Answered(question, [nats[index, place] for place in range(len(choices))], [len(choice) for choice in choices])
        for index, (question, (_, choices)) in enumerate(zip(questions, encoded, strict=True))
    ]
    return answers, sum(len(own) > 1 for own in by_question)


def _progress(total: int, say: Any) -> Any:
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        if done - told >= _SAY_EVERY and done < total:
            told = done
            say(f"{done:,} of {total:,} rows")

    return tell


def _write_items(file: Path, answers: Sequence[Answered]) -> None:
    from minimind.inference.choices.scores import MEASURES, chosen

    try:
        with replacing(file) as out:
            for one in answers:
                question = one.question
                row = {
                    "file": question.file,
                    "line": question.line,
                    "subject": question.subject,
                    "answer": question.answer,
                    **{measure: chosen(one, measure) for measure in MEASURES},
                    "log_likelihoods": one.nats,
                }
                out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise UserError(f"{file}: can't be written: {error.strerror}") from error
