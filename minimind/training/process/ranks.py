"""Small agreements between ranks, over gloo, so that they never wait behind GPU work.

Contract: every rank calls the same methods in the same order. Known weakness: a rank that is gone is noticed when its
connection closes, or after the timeout if its machine is.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from minimind.base.errors import UserError

T = TypeVar("T")
CONTROL_TIMEOUT = timedelta(hours=24)  # ranks wait this long for rank 0 to tokenise a large corpus


@cache
def _control_group(purpose: str) -> Any:
    """One a purpose for the whole process: each keeps threads and sockets, and a sweep has many engines."""
    return dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)


class Control:
    """Small agreements between ranks over gloo, so that they never wait behind GPU work.

    A thread beside the training loop needs a ``purpose`` of its own: two threads in one group would mix their messages.
    """

    def __init__(self, purpose: str = "training") -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._group = _control_group(purpose) if self.world_size > 1 else None

    def sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over the ranks (float64, exact for counts below 2**53)."""
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return total.tolist()

    def from_first(self, value: Any) -> Any:
        """Rank 0's ``value``, on every rank."""
        box = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's ``value`` (picklable), by rank, on every rank."""
        values = [value]
        if self.world_size > 1:
            values = [None] * self.world_size
            dist.all_gather_object(values, value, group=self._group)
        return values

    def first_does(self, work: Callable[[], Any]) -> Any:
        """Rank 0 does ``work`` while the others wait; all get its result, or its exception."""
        outcome: tuple[Any, BaseException | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = (work(), None)
            except Exception as error:  # re-raised below, on every rank
                outcome = (None, error)
        result, failure = self.from_first(outcome)
        if failure is not None:
            raise failure
        return result

    def all_do(self, work: Callable[[], T]) -> T:
        """Every rank does ``work``; its own result, or on all ranks the exception of the first that had one.

        A UserError of another rank than the first names that rank and its host.
        """
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # raised below, on every rank
            failure = with_host(error, self.rank)
        failures = [error for error in self.gather(failure) if error is not None]
        if failures:
            raise failures[0]
        return cast(T, result)

    def send(self, data: bytearray, to: int) -> None:
        """Hand ``data`` to rank ``to``, which calls ``receive`` meanwhile. RuntimeError when that one is gone."""
        dist.send(torch.tensor([len(data)]), to, group=self._group)
        if data:
            dist.send(torch.frombuffer(data, dtype=torch.uint8), to, group=self._group)

    def receive(self, source: int) -> bytes:
        """What rank ``source`` sends next. RuntimeError when that one is gone."""
        size = torch.empty(1, dtype=torch.int64)
        dist.recv(size, source, group=self._group)
        data = torch.empty(int(size), dtype=torch.uint8)
        if len(data):
            dist.recv(data, source, group=self._group)
        return data.numpy().tobytes()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.sum([0.0])


def with_host(error: Exception, rank: int) -> Exception:
    """A user's error as other hosts must say it."""
    return UserError(f"{named(rank)}: {error}") if isinstance(error, UserError) and rank else error


def named(rank: int) -> str:
    """This rank as a person finds it."""
    return f"{socket.gethostname()} (rank {rank})"
