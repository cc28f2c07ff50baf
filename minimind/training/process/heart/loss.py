"""What a lost rank is called."""

from __future__ import annotations

from collections.abc import Sequence

from minimind.training.process.heart.beats import Frame, Word

EARLY = 256  # no exit code: the rank was asked to stop before the first step


def sentence(loss: Frame, hosts: Sequence[str]) -> str:
    """Which rank on which host, and what became of it. ``hosts``: by rank."""
    who = f"rank {loss.rank} on {hosts[loss.rank]}"
    if loss.kind is Word.SILENT:
        return f"{who} has not been heard for {loss.detail} s: its host is down, or the network to it"
    if loss.kind is Word.STOPPED:
        return f"{who} has been stopped (SIGSTOP) for {loss.detail} s"
    if loss.kind is Word.GONE:
        return f"{who} was killed, or has ended without a word"
    if loss.detail == EARLY:
        return f"{who} was asked to stop before the first step: nothing was trained"
    return f"{who} has ended with exit code {loss.detail}; the reason is on that host's screen"
