"""A model that answers questions as they come, from any event loop: one thread runs the batch (batching.py).

Contract. Questions begin in the order in which they were asked, as soon as there is room; their answers are made
together. An answer whose reader has gone ends within a token (while its prompt is read, after that). Nobody who reads
slowly holds up the others: what is made waits for its reader, at most ``max_new_tokens`` pieces. PyTorch keeps a
thread pool for each thread that calls it, so there is one thread for all.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from minimind.inference.answers import Piece, Question, Writer, joined
from minimind.inference.batching import Batch
from minimind.model.transformer import Transformer
from minimind.text.tokenizer import Tokenizer

PROMPT_TOKENS = 512  # read between two tokens of the others; at least one prompt


class Stopped(Exception):
    """The server stops: no answer is made any more."""


@dataclass(eq=False)
class _Ticket:
    """A question, and where its pieces go."""

    question: Question
    loop: asyncio.AbstractEventLoop
    whole: bool  # delivered as one piece
    pieces: asyncio.Queue[Piece | Exception] = field(default_factory=asyncio.Queue)
    held: list[Piece] = field(default_factory=list)
    gone: bool = False
    writer: Writer | None = None


class Speaker:
    """``stopping``: asked before each token; true: all answers end with `Stopped`. `close` ends the thread."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, stopping: Callable[[], bool] = lambda: False) -> None:
        self.model, self.tokenizer, self.stopping = model, tokenizer, stopping
        self.batch = Batch(model, tokenizer)
        self._waiting: deque[_Ticket] = deque()
        self._answering: list[_Ticket] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="generation", daemon=True)
        self._thread.start()

    async def answer(self, question: Question, whole: bool = False) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer; what has been made meanwhile is one piece, all of it if ``whole``. Raises `Stopped`,
        and what generation raises."""
        ticket = _Ticket(question, asyncio.get_running_loop(), whole)
        self._submit(ticket)
        try:
            while True:
                piece = _checked(await ticket.pieces.get())
                while piece.finish is None and not ticket.pieces.empty():
                    piece += _checked(ticket.pieces.get_nowait())
                yield piece
                if piece.finish is not None:
                    return
        finally:
            ticket.gone = True

    def close(self) -> None:
        """End all answers and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _submit(self, ticket: _Ticket) -> None:
        with self._changed:
            self._waiting.append(ticket)
            self._changed.notify()

    def _work(self) -> None:
        while self._wait():
            made: list[tuple[_Ticket, Piece | Exception]] = []
            try:
                self._leave()
                self._admit(made)
                self._step(made)
            except Exception as error:  # the readers are told, and raise it for the log
                made += [(ticket, error) for ticket in self._answering]
                self._answering.clear()
                self.batch = Batch(self.model, self.tokenizer)
            _deliver(made)

    def _wait(self) -> bool:
        """Until there is something to do; false: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or self._answering)
            stopped = self._closed or self.stopping()
            tickets = [*self._answering, *self._waiting] if stopped else []
            if stopped:
                self._waiting.clear()
        if stopped:
            for ticket in self._answering:
                self._end(ticket)
            self._answering.clear()
            _deliver([(ticket, Stopped("the server is stopping")) for ticket in tickets])
        return not self._closed

    def _leave(self) -> None:
        """Answers that nobody waits for any more."""
        for ticket in [ticket for ticket in self._answering if ticket.gone]:
            self._end(ticket)
            self._answering.remove(ticket)

    def _end(self, ticket: _Ticket) -> None:
        if ticket.writer is not None:
            self.batch.drop(ticket.writer)

    def _next(self, read: int) -> _Ticket | None:
        """The next question, if there is room for it; ``read``: prompt tokens since the last step."""
        with self._changed:
            while self._waiting and self._waiting[0].gone:
                self._waiting.popleft()
            if not self._waiting or not self.batch.has_room(self._waiting[0].question):
                return None
            if read and read + len(self._waiting[0].question.prompt) > PROMPT_TOKENS:
                return None
            return self._waiting.popleft()

    def _admit(self, made: list[tuple[_Ticket, Piece | Exception]]) -> None:
        read = 0
        while (ticket := self._next(read)) is not None:
            read += len(ticket.question.prompt)
            try:
                ticket.writer, piece = self.batch.add(ticket.question)
            except Exception as error:  # this one's alone
                made.append((ticket, error))
                continue
            made.append((ticket, piece))
            if piece.finish is None:
                self._answering.append(ticket)

    def _step(self, made: list[tuple[_Ticket, Piece | Exception]]) -> None:
        if not self._answering:
            return
        tickets = {ticket.writer: ticket for ticket in self._answering}
        for writer, piece in self.batch.step():
            made.append((tickets[writer], piece))
            if piece.finish is not None:
                self._answering.remove(tickets[writer])


def _checked(piece: Piece | Exception) -> Piece:
    if isinstance(piece, Exception):
        raise piece
    return piece


def _deliver(made: list[tuple[_Ticket, Piece | Exception]]) -> None:
    """Once for each event loop: waking one costs more than what is delivered."""
    made = [(ticket, ready) for ticket, piece in made if (ready := _ready(ticket, piece)) is not None]
    for loop in {ticket.loop for ticket, _ in made}:
        mine = [(ticket, piece) for ticket, piece in made if ticket.loop is loop and not ticket.gone]
        if mine and not loop.is_closed():
            loop.call_soon_threadsafe(_put, mine)


def _ready(ticket: _Ticket, piece: Piece | Exception) -> Piece | Exception | None:
    """What its reader gets now: of an answer that is wanted whole nothing before its end."""
    if isinstance(piece, Exception) or not ticket.whole:
        return piece
    ticket.held.append(piece)
    return None if piece.finish is None else joined(ticket.held)


def _put(made: list[tuple[_Ticket, Piece | Exception]]) -> None:
    for ticket, piece in made:
        ticket.pieces.put_nowait(piece)
