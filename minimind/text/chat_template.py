"""A chat template of others: conversations as transformers' ``apply_chat_template`` writes them, with the tokens that
the assistant says itself found and proven, conversation by conversation.

Where the answers are. A template that marks them (``{% generation %}``) is taken at its word. Of another the header is
found once, on a question and its answer: what the generation prompt and the answered conversation both begin with after
the question; of a header that goes on into a reasoning block only the part before ``<think>``, since the model learns
to say that block itself. An answer then goes from the end of a header to the first end-of-turn token, which is in it.

What is proven of each conversation, or it is refused:
1. Its rendering with marks (marks.py), the marks taken out, is its rendering.
2. There are as many answers as assistant messages, each holds its message's text, and no other message's.
3. What stands before the last answer is what the model is given to answer (``add_generation_prompt=True``).
4. No token crosses an edge of an answer, and no special token is written by a user: what is special comes from the
   template, and everything between two special tokens is encoded as ordinary text.

Weakness: 3 is looked at for the last answer only, because templates rewrite earlier ones (Qwen3 leaves their reasoning
out). What ``{% generation %}`` leaves out, the end of a turn perhaps, isn't learnt.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from minimind.base.errors import UserError
from minimind.text.codec import Codec, refuse_surrogates
from minimind.text.marks import Marks
from minimind.text.messages import THOUGHT_START, Message, Tools, messages_of, says, strings, thinks, with_aliases
from minimind.text.sandbox import Program, TemplateFailure, program
from minimind.text.spans import Encoder, Span
from minimind.text.turn import NotRendered, Rendered, Turn, is_answer

_NONE: Mapping[str, Any] = {}
_QUESTION = [Turn("user", "Why?"), Turn("assistant", "Because.")]
_MORE = [*_QUESTION, Turn("user", "How?"), Turn("assistant", "So.")]


@dataclass(frozen=True)
class _Chat:
    """Messages and tools, and the text with marks that the template made of them."""

    messages: Sequence[Message]
    tools: Tools
    text: str
    marks: Marks


class ChatTemplate:
    """Rendering by a template that is not ours. UserError for one that can never be proven."""

    def __init__(self, sources: Mapping[str, str], names: Mapping[str, str], codec: Codec, where: str) -> None:
        """``sources``: "default", and perhaps "tool_use". ``names``: what ``bos_token`` and so on stand for in it.
        ``where``: the template, for messages."""
        self._where, self._names = where, names
        if codec.joins_special:
            self._refuse(f"{codec.joins_special}, so text and special tokens can't be encoded apart")
        self._encoder = Encoder(codec)
        self._fragile, self._header = self._encoder.tokens, ""
        try:
            self._programs = {name: program(source) for name, source in sources.items()}
            self.stop_id = self._learn_edges()
            for probe in (_QUESTION, _MORE):
                self.render(probe)
        except TemplateFailure as error:
            self._refuse(f"it {error}")
        except NotRendered as error:
            self._refuse(str(error))

    def render(self, turns: Sequence[Turn]) -> Rendered:
        """The whole conversation. NotRendered for one whose answers can't be proven."""
        chat = self._write(*messages_of(turns))
        spans = list(self._spans(chat))
        _check_marks(chat, spans)
        self._check_prompt(chat, spans)
        spoken = [turn for turn in turns if turn.message != {}]  # the turns that are messages
        ids, trainable = self._encoder.encode(
            chat.text, chat.marks, [span for span in spans if is_answer(spoken[span.number])]
        )
        thoughts = [chat.marks.thought(number) for number, message in enumerate(chat.messages) if thinks(message)]
        return Rendered(ids, trainable, sum(thought not in chat.text for thought in thoughts))

    def prompt_ids(self, turns: Sequence[Turn], settings: Mapping[str, Any] = _NONE) -> list[int]:
        """The conversation so far, and what an answer begins with. ``settings``: what the template is told beside it,
        by names that it `reads`, such as ``enable_thinking``. NotRendered."""
        chat = self._write(*messages_of(turns), prompt=True, settings=settings)
        _check_told(chat)
        return self._encoder.encode(chat.text, chat.marks, [])[0]

    def reads(self, name: str) -> bool:
        """Whether the template names such a variable that is not the conversation's."""
        theirs = {"messages", "tools", "documents", "add_generation_prompt", *self._names}
        named = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
        return name not in theirs and any(named.search(each.source) for each in self._programs.values())

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(f"{self._where}: its chat template can't be used: {reason}; take another --tokenizer")

    def _learn_edges(self) -> int:
        """Header and end of an answer, from a question and its answer; the id of the token that ends it."""
        probe, _ = messages_of(_QUESTION)
        answered, asked = self._write(probe, None), self._write(probe[:1], None)
        prompt = self._write(probe[:1], None, prompt=True)
        if answered.marks.body(1) not in answered.text or any(
            chat.marks.body(0) not in chat.text for chat in (answered, asked, prompt)
        ):
            raise NotRendered("it leaves out a plain question, or its answer")
        end = self._encoder.tokens.search(_after(answered, 1))
        if end is None:
            raise NotRendered("its answers end without a special token, so nothing would say where to stop")
        self._stop = end[0]
        if not self._program(None).has_marks:
            self._header = _header(_after(asked, 0), _after(prompt, 0), _after(answered, 0))
            self._fragile = re.compile(f"{self._encoder.tokens.pattern}|{re.escape(self._header)}")
        return self._encoder.special[self._stop]

    def _program(self, tools: Tools) -> Program:
        return self._programs.get("tool_use" if tools else "default") or self._programs["default"]

    def _run(
        self,
        messages: Sequence[Message],
        tools: Tools,
        size: int,
        prompt: bool,
        *,
        marks: tuple[str, str] = ("", ""),
        settings: Mapping[str, Any] = _NONE,
    ) -> str:
        """The template's text. ``size``: characters that it is given. NotRendered for what it can't write."""
        values = {
            **settings,
            **self._names,
            "messages": [with_aliases(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        try:
            return self._program(tools).render(values, size, marks)
        except TemplateFailure as error:
            raise NotRendered(f"the chat template {error}") from None

    def _write(
        self, messages: Sequence[Message], tools: Tools, prompt: bool = False, settings: Mapping[str, Any] = _NONE
    ) -> _Chat:
        """The rendering with marks. NotRendered if the marks change it."""
        given = "\n".join(strings([messages, tools]))
        plain = self._run(messages, tools, len(given), prompt, settings=settings)
        refuse_surrogates(plain, "")
        marks = Marks(given + plain + self._program(tools).source, self._fragile)
        edges = (marks.start, marks.end)
        told = marks.messages(messages), marks.tools(tools)
        marked = self._run(*told, len(given), prompt, marks=edges, settings=settings)
        if marks.strip(marked) != plain:
            raise NotRendered("the chat template looks into a text for special tokens, tags or lengths")
        return _Chat(messages, tools, marked, marks)

    def _spans(self, chat: _Chat) -> Iterator[Span]:
        """The answers in order. NotRendered unless there is one for each assistant message."""
        numbers = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        found = list(self._after_headers(chat.text) if self._header else _marked(chat))
        if len(found) != len(numbers):
            raise NotRendered(f"the chat template writes {len(found)} answers for {len(numbers)} assistant turns")
        yield from (Span(start, end, number) for (start, end), number in zip(found, numbers, strict=True))

    def _after_headers(self, text: str) -> Iterator[tuple[int, int]]:
        start = text.find(self._header)
        while start >= 0:
            begin = start + len(self._header)
            start, stop = text.find(self._header, begin), text.find(self._stop, begin)
            if stop < 0 or 0 <= start < stop:
                raise NotRendered("the chat template writes an answer without its end")
            yield begin, stop + len(self._stop)

    def _check_prompt(self, chat: _Chat, spans: Sequence[Span]) -> None:
        """What stands before the last answer is what the model will be given."""
        if not spans or not self._header:
            return
        before = chat.marks.strip(chat.text[: spans[-1].start])
        asked = chat.messages[: spans[-1].number]
        if not self._run(asked, chat.tools, len(chat.text), prompt=True).startswith(before):
            raise NotRendered(
                "what the chat template writes before the last answer isn't what a model is prompted with"
            )


def _header(asked: str, prompt: str, answered: str) -> str:
    """What tells that an answer begins, from what follows a question: alone, with the generation prompt, answered."""
    both = _common(prompt, answered)
    own = both[len(_common(asked, both)) :].partition(THOUGHT_START)[0]
    # A template without a generation prompt of its own ([/INST]): what ends the question. Its text has two characters
    # after the mark.
    header = own or (both[2:] if prompt == asked else "")
    if not header:
        raise NotRendered("what stands before an answer isn't what add_generation_prompt writes")
    return header


def _common(one: str, other: str) -> str:
    """What both begin with."""
    return "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _marked(chat: _Chat) -> Iterator[tuple[int, int]]:
    """What stands in ``{% generation %}``; of blocks with nothing between them (an answer, and its end) all."""
    start, end = chat.marks.start, chat.marks.end
    for found in re.finditer(f"{start}([^{start}{end}]*(?:{end}{start}[^{start}{end}]*)*){end}", chat.text):
        yield found.span(1)


def _check_told(chat: _Chat) -> None:
    """Tools and every message's text are there. NotRendered."""
    there = set(chat.marks.find(chat.text))
    if chat.tools and chat.marks.tool not in chat.text:
        raise NotRendered("the chat template leaves out the tools")
    for number, message in enumerate(chat.messages):
        if says(message) and chat.marks.body(number) not in there:
            raise NotRendered(f"the chat template leaves out message {number + 1} ({message['role']})")


def _check_marks(chat: _Chat, spans: Sequence[Span]) -> None:
    """Every message's text is there; that of an answer in its span, any other outside of all. NotRendered."""
    _check_told(chat)
    marks, text = chat.marks, chat.text
    answers = {span.number for span in spans}
    inside = {mark: span.number for span in spans for mark in marks.find(text[span.start : span.end])}
    everywhere = Counter(marks.find(text))
    for number, message in enumerate(chat.messages):
        name = f"message {number + 1} ({message['role']})"
        place = number if number in answers else None
        for mark in everywhere.keys() & {marks.body(number), marks.thought(number)}:
            if everywhere[mark] > 1 or inside.get(mark) != place:
                raise NotRendered(f"the chat template writes {name} where it isn't expected, or twice")


def _after(chat: _Chat, number: int) -> str:
    return chat.text.partition(chat.marks.body(number))[2]
