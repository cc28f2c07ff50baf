"""The heartbeat's port: sealed beats are answered, anything else is closed, and strangers can't crowd it."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Iterator

import pytest

from minimind.training.process.heart.beats import ANSWER, BEAT, SIZE, Frame, Word, opened
from minimind.training.process.heart.caller import Caller
from minimind.training.process.heart.listener import PATIENCE, STRANGERS, Listener
from minimind.training.process.heart.roll import CLOSED
from tests.waiting import wait_for

KEY, LIMIT = b"k" * 32, 50.0


class Port:
    """A listener for three ranks, and what it has heard."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.listener = Listener(self.selector, ("127.0.0.1", 0), KEY, 3)
        self.beats: list[Frame] = []
        self.gone: list[int] = []
        self.answer = Frame(Word.FINE, 1)
        self.listener.heard, self.listener.closed = self._heard, self.gone.append

    def _heard(self, frame: Frame) -> Frame:
        self.beats.append(frame)
        return self.answer

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.listener.port))
        connection.setblocking(False)
        self.turn()
        return connection

    def until(self, condition: Callable[[], object]) -> None:
        wait_for(lambda: self.turn() or condition())


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.listener.close()


def received(connection: socket.socket) -> bytes | None:
    """What has come; empty once it is closed, None if nothing is there yet."""
    try:
        return connection.recv(1000)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def beat(count: int = 1, rank: int = 1, key: bytes = KEY) -> bytes:
    return Frame(Word.ALIVE, rank, count).sealed(BEAT, key)


def test_a_sealed_beat_is_heard_and_answered_although_it_comes_in_pieces(port: Port) -> None:
    connection = port.connect()
    connection.sendall(beat()[:7])
    port.turn()
    connection.sendall(beat()[7:])
    answers: list[bytes] = []
    port.until(lambda: answers.append(received(connection) or b"") or answers[-1])
    assert port.beats == [Frame(Word.ALIVE, 1, 1)]
    assert opened(answers[-1], ANSWER, KEY) == Frame(Word.FINE, 1, 1)
    assert opened(answers[-1], BEAT, KEY) is None  # it can't be sent back


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: node1:29500\r\nAccept: */*\r\n\r\n",
        bytes(SIZE),
        beat(key=b"x" * 32),
        beat(rank=3),
        beat(rank=0),
        beat()[:-1] + b"!",
        Frame(Word.FINE, 1, 1).sealed(ANSWER, KEY),
    ],
)
def test_anything_else_is_closed_unanswered(port: Port, data: bytes) -> None:
    connection = port.connect()
    connection.sendall(data)
    port.until(lambda: received(connection) == b"")
    assert port.beats == [] and port.gone == []


def test_a_beat_that_is_sent_again_is_closed_and_the_rank_keeps_its_connection(port: Port) -> None:
    mine = port.connect()
    mine.sendall(beat(5))
    port.until(lambda: port.beats)
    thief = port.connect()
    thief.sendall(beat(5))
    port.until(lambda: received(thief) == b"")
    mine.sendall(beat(6))
    port.until(lambda: len(port.beats) == 2)
    assert port.gone == []


def test_a_new_connection_of_a_rank_takes_the_old_ones_place(port: Port) -> None:
    old = port.connect()
    old.sendall(beat(1))
    port.until(lambda: port.beats)
    new = port.connect()
    new.sendall(beat(2))
    port.until(lambda: len(port.beats) == 2)
    old.setblocking(True)
    assert len(old.recv(SIZE)) == SIZE and old.recv(1) == b"" and port.gone == []
    new.close()
    port.until(lambda: port.gone)
    assert port.gone == [1]


def test_strangers_are_few_and_do_not_stay(port: Port) -> None:
    member = port.connect()
    member.sendall(beat())
    port.until(lambda: port.beats)
    strangers = [port.connect() for _ in range(STRANGERS + 5)]
    port.until(lambda: sum(received(stranger) == b"" for stranger in strangers) == 5)
    for _ in range(int(PATIENCE) + 1):
        port.listener.passed(1.0)
    port.until(lambda: all(received(stranger) == b"" for stranger in strangers))
    member.sendall(beat(2))
    port.until(lambda: len(port.beats) == 2)


class Call:
    """A caller of rank 1, on a port or on none, with its own idea of the time."""

    def __init__(self, number: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.caller = Caller(self.selector, ("127.0.0.1", number), KEY, 1, LIMIT)

    def turn(self, seconds: float = 0.1, kind: Word = Word.ALIVE) -> None:
        self.caller.beat(kind)
        for key, _ in self.selector.select(0.01):
            key.data()
        self.caller.passed(seconds)


def test_a_caller_meets_hears_a_loss_and_connects_again_after_a_break(port: Port) -> None:
    call = Call(port.listener.port)
    port.until(lambda: call.turn() or call.caller.met)
    for connection in list(port.listener._by_rank.values()):
        connection.socket.shutdown(socket.SHUT_RDWR)
    port.until(lambda: port.gone)
    before = len(port.beats)
    port.until(lambda: call.turn() or len(port.beats) > before)
    assert call.caller.lost is None
    assert call.caller.saved == 0
    port.answer = Frame(Word.FINE, 1, saved=20)
    port.until(lambda: call.turn(kind=Word.STOPPED) or call.caller.saved == 20)
    port.answer = Frame(Word.SILENT, 2, detail=51, saved=30)
    port.until(lambda: call.turn(kind=Word.ALIVE) or call.caller.lost)
    assert call.caller.lost is not None and (call.caller.lost.kind, call.caller.lost.rank) == (Word.SILENT, 2)
    assert call.caller.certain and call.caller.saved == 30  # a rank that is stopped did not hear of that one
    call.caller.close()


def test_a_caller_that_nobody_answers_has_lost_the_first_rank(port: Port) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel takes the connection, nobody reads
        call = Call(mute.getsockname()[1])
        for _ in range(int(LIMIT)):
            call.turn(1.0)
        assert call.caller.lost is None
        call.turn(1.0)
        assert call.caller.lost == Frame(Word.SILENT, 0, detail=51) and not call.caller.certain
        call.caller.close()


def test_a_caller_that_is_refused_knows_sooner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        number = closed.getsockname()[1]
    call = Call(number)
    wait_for(lambda: call.turn(1.0) or call.caller.lost)
    assert call.caller.lost == Frame(Word.GONE, 0)
    assert CLOSED < LIMIT


def test_an_answer_of_another_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        call = Call(server.getsockname()[1])
        call.turn()
        connection = stack.enter_context(server.accept()[0])
        call.turn()
        assert len(connection.recv(SIZE)) == SIZE
        for frame in (Frame(Word.GONE, 2, 1).sealed(ANSWER, KEY), Frame(Word.OVER, 0, 7).sealed(ANSWER, b"x" * 32)):
            connection.sendall(frame)
        for _ in range(5):
            call.turn()
        assert not call.caller.met and call.caller.lost is None and not call.caller.over
        call.caller.close()
