"""Conversations: turns in, token ids out, with each token's "trainable" flag.

A tokenizer that brings a chat template has conversations written by that (chat_template.py). Any other has ours, where
the flags are known from construction: bos, then for each turn ``<|im_start|>role⏎content<|im_end|>⏎``. Trainable are
the content tokens of assistant turns (but those that are context only) and the ``<|im_end|>`` after them: what the
model must say itself. The flags are set while the ids are laid down, never found by searching for markers, so content
that spells ``<|im_start|>assistant`` is ordinary text. There is no eos: generation stops at ``<|im_end|>``.

Known weakness: `JINJA` builds the same string for other programs; one that tokenizes that string as a whole will
take special tokens spelled inside content for special.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from minimind.base.errors import UserError
from minimind.text.chat_template import ChatTemplate
from minimind.text.template import JINJA
from minimind.text.tokenizer import Tokenizer
from minimind.text.turn import ROLES, Fitted, NotRendered, Rendered, Role, Turn, is_answer

__all__ = [
    "JINJA",
    "ROLES",
    "Fitted",
    "NotRendered",
    "Rendered",
    "Role",
    "Turn",
    "fit",
    "is_answer",
    "prompt_ids",
    "render",
]


def render(turns: Sequence[Turn], tokenizer: Tokenizer) -> Rendered:
    """The whole conversation. ValueError on a lone surrogate in a content, NotRendered (one too) where another's chat
    template can't write it, UserError from ``check_chats``."""
    if tokenizer.chat_template is not None:
        return tokenizer.chat_template.render(turns)
    return _join(tokenizer, _spans(turns, tokenizer))


def prompt_ids(turns: Sequence[Turn], tokenizer: Tokenizer, settings: Mapping[str, Any] | None = None) -> list[int]:
    """The conversation so far, ending with ``<|im_start|>assistant⏎``: the next token is the answer's first.

    ``settings``: what a chat template of others is told beside it (``enable_thinking``). Raises UserError where it
    can't write the conversation, or doesn't read a setting, as ours reads none.
    """
    template = tokenizer.chat_template
    for name in settings or ():
        if template is None or not template.reads(name):
            raise UserError(f"this model's chat template reads no {name!r}: leave it out")
    if template is not None:
        try:
            return template.prompt_ids(turns, settings or {})
        except NotRendered as error:
            raise UserError(f"this conversation can't be written for the model: {error}") from None
    return render(turns, tokenizer).ids + tokenizer.headers["assistant"]


def fit(turns: Sequence[Turn], tokenizer: Tokenizer, max_tokens: int) -> Fitted | None:
    """The conversation in at most `max_tokens` tokens, or None where no answer can be kept.

    A row of length T holds T predictions, so it takes a conversation of T + 1 tokens: pass ``max_seq_length + 1``.

    1. A conversation that fits is kept whole (None if it holds no trainable token).
    2. Else whole turns are kept from the end: the last answer with as many turns before it as fit. The kept
       part begins with a user turn (an answer or tool result without its question teaches nothing), and turns
       after that answer are dropped. If the last answer's exchange doesn't fit, the one before it is tried, and
       so on.
    3. A leading system turn stays if the result still fits, and goes if it costs the last exchange.
    4. If no whole exchange fits, the last answer whose question leaves room for at least one answer token is
       cut at the limit: its tokens are still right predictions, and as its ``<|im_end|>`` is cut off too, it
       doesn't teach to stop early.
    5. None if not even that. So a result always has a trainable token.

    Raises as `render`.
    """
    if tokenizer.chat_template is not None:
        return _fit_rendered(turns, tokenizer.chat_template, max_tokens)
    spans = _spans(turns, tokenizer)
    whole = _join(tokenizer, spans)
    if len(whole.ids) <= max_tokens:
        return Fitted(whole, tuple(range(len(turns))), False) if any(whole.trainable) else None
    kept = _window(turns, [len(span.ids) for span in spans], max_tokens)
    if kept is not None:
        return Fitted(_join(tokenizer, [spans[i] for i in kept]), kept, False)
    return _cut_answer(turns, spans, tokenizer, max_tokens)


def _spans(turns: Sequence[Turn], tokenizer: Tokenizer) -> list[Rendered]:
    """Each turn's ids and flags, without bos. Header, content and line break are encoded apart."""
    tokenizer.check_chats()
    line_break = tokenizer.line_break
    spans = []
    for turn, content in zip(turns, tokenizer.encode_behind([turn.content for turn in turns]), strict=True):
        answer, header = is_answer(turn), tokenizer.headers[turn.role]
        ids = [*header, *content, tokenizer.im_end_id, *line_break]
        trainable = [False] * len(header) + [answer] * (len(content) + 1) + [False] * len(line_break)
        spans.append(Rendered(ids, trainable))
    return spans


def _join(tokenizer: Tokenizer, spans: Iterable[Rendered]) -> Rendered:
    ids, trainable = [tokenizer.bos_id], [False]
    for span in spans:
        ids.extend(span.ids)
        trainable.extend(span.trainable)
    return Rendered(ids, trainable)


def _window(turns: Sequence[Turn], sizes: Sequence[int], limit: int) -> tuple[int, ...] | None:
    """Rules 2 and 3 of `fit` over the turns' sizes in tokens."""
    before = [0, *accumulate(sizes)]
    systems = ((0,), ()) if turns[0].role == "system" else ((),)
    for end in _answers(turns):
        for system in systems:
            room = limit - 1 - sum(sizes[i] for i in system)  # 1: bos
            for start in _starts(turns, end):
                if before[end + 1] - before[start] <= room:
                    return (*system, *range(start, end + 1))
    return None


def _cut_answer(turns: Sequence[Turn], spans: Sequence[Rendered], tokenizer: Tokenizer, limit: int) -> Fitted | None:
    """Rule 4 of `fit`."""
    for end in _answers(turns):
        start = max(_starts(turns, end))
        exchange = _join(tokenizer, spans[start : end + 1])
        cut = Rendered(exchange.ids[:limit], exchange.trainable[:limit])
        earlier = sum(len(span.ids) for span in spans[start:end]) + 1
        if any(cut.trainable[earlier:]):
            return Fitted(cut, tuple(range(start, end + 1)), tokenizer.im_end_id not in cut.ids[earlier:])
    return None


def _fit_rendered(turns: Sequence[Turn], template: ChatTemplate, limit: int) -> Fitted | None:
    """`fit` by a template that may write a turn otherwise when others are left out: each choice is rendered."""
    whole = template.render(turns)
    if len(whole.ids) <= limit:
        return Fitted(whole, tuple(range(len(turns))), False) if any(whole.trainable) else None
    rendered = cache(lambda kept: template.render([turns[i] for i in kept]))
    weights = [len(turn.content) + 16 for turn in turns]
    room = limit * sum(weights) / len(whole.ids)  # in characters and headers, about
    for end in _answers(turns):
        for system in ((0,), ()) if turns[0].role == "system" else ((),):
            choices = [(*system, *range(start, end + 1)) for start in _starts(turns, end)]
            kept = _first(choices, [sum(weights[i] for i in kept) <= room for kept in choices], rendered, limit)
            if kept is not None:
                return Fitted(rendered(kept), kept, False)
    for end in _answers(turns):
        kept = tuple(range(max(_starts(turns, end)), end + 1))
        found = rendered(kept)
        first, last = _last_run(found.trainable)
        if first < limit:
            cut = Rendered(found.ids[:limit], found.trainable[:limit], found.unspoken)
            return Fitted(cut, kept, last >= limit)
    return None


def _first(
    choices: Sequence[tuple[int, ...]],
    expected: Sequence[bool],
    rendered: Callable[[tuple[int, ...]], Rendered],
    limit: int,
) -> tuple[int, ...] | None:
    """The first of ever shorter choices that fits, looked for from where one is ``expected`` to; None if none does."""
    place = expected.index(True) if True in expected else len(choices) - 1
    while place < len(choices) and len(rendered(choices[place]).ids) > limit:
        place += 1
    while 0 < place < len(choices) and len(rendered(choices[place - 1]).ids) <= limit:
        place -= 1
    return choices[place] if place < len(choices) else None


def _last_run(flags: Sequence[bool]) -> tuple[int, int]:
    """Where the last run of True begins and ends (its last place)."""
    last = len(flags) - 1 - flags[::-1].index(True)
    return next((i + 1 for i in range(last, -1, -1) if not flags[i]), 0), last


def _answers(turns: Sequence[Turn]) -> list[int]:
    """Indices of the answers, the last one first."""
    return [i for i in reversed(range(len(turns))) if is_answer(turns[i])]


def _starts(turns: Sequence[Turn], end: int) -> list[int]:
    """Where a kept part that ends with turn `end` may begin: the conversation's first turn, or a user turn."""
    first = 1 if turns[0].role == "system" else 0
    return [i for i in range(first, end + 1) if i == first or turns[i].role == "user"]
