"""The chat template: turns in, token ids out, with each token's "trainable" flag known from construction.

A conversation is bos, then for each turn ``<|im_start|>role⏎content<|im_end|>⏎``. Trainable are the content tokens of
assistant turns (but those that are context only) and the ``<|im_end|>`` after them: what the model must say itself.
The flags are set while the ids are laid down, never found by searching for markers, so content that spells
``<|im_start|>assistant`` is ordinary text. There is no eos: generation stops at ``<|im_end|>``.

Known weakness: `JINJA` builds the same string for other programs; one that tokenizes that string as a whole will
take special tokens spelled inside content for special.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from minimind.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)

JINJA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template as Hugging Face's ``chat_template``; tests spell it out and compare."""


@dataclass(frozen=True)
class Turn:
    """One message. ValueError for a role that the template doesn't know. ``trained`` False: an answer as context."""

    role: Role
    content: str
    trained: bool = True

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown role {self.role!r}; known: {', '.join(ROLES)}")


@dataclass(frozen=True)
class Rendered:
    """Token ids and, for each, whether it is a training target. Both lists have the same length."""

    ids: list[int]
    trainable: list[bool]


@dataclass(frozen=True)
class Fitted:
    """A conversation that fits. `turns`: indices of those kept; `answer_cut`: the last answer lost its end."""

    rendered: Rendered
    turns: tuple[int, ...]
    answer_cut: bool


def is_answer(turn: Turn) -> bool:
    """Whether the turn's content is what the model learns to say."""
    return turn.role == "assistant" and turn.trained


def render(turns: Sequence[Turn], tokenizer: Tokenizer) -> Rendered:
    """The whole conversation. ValueError on a lone surrogate in a content."""
    return _join(tokenizer, _spans(turns, tokenizer))


def prompt_ids(turns: Sequence[Turn], tokenizer: Tokenizer) -> list[int]:
    """The conversation so far, ending with ``<|im_start|>assistant⏎``: the next token is the answer's first."""
    header = [tokenizer.im_start_id, *tokenizer.encode("assistant\n")]
    return render(turns, tokenizer).ids + header


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
    """
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
    texts = [text for turn in turns for text in (f"{turn.role}\n", turn.content)]
    encoded = tokenizer.encode_batch([*texts, "\n"])
    line_break = encoded.pop()
    spans = []
    for turn, header, content in zip(turns, encoded[::2], encoded[1::2], strict=True):
        answer = is_answer(turn)
        ids = [tokenizer.im_start_id, *header, *content, tokenizer.im_end_id, *line_break]
        trainable = [False] * (1 + len(header)) + [answer] * (len(content) + 1) + [False] * len(line_break)
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


def _answers(turns: Sequence[Turn]) -> list[int]:
    """Indices of the answers, the last one first."""
    return [i for i in reversed(range(len(turns))) if is_answer(turns[i])]


def _starts(turns: Sequence[Turn], end: int) -> list[int]:
    """Where a kept part that ends with turn `end` may begin: the conversation's first turn, or a user turn."""
    first = 1 if turns[0].role == "system" else 0
    return [i for i in range(first, end + 1) if i == first or turns[i].role == "user"]
