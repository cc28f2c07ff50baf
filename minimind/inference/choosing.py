"""Choosing the next token of each row of a batch, each as if it were alone.

Contract. Repetition penalty, temperature, top-k, top-p, in this order (as transformers). Temperature 0 takes the
likeliest token. A row draws from its own generator, one number a token, and what it chooses does not depend on the
other rows. Computed on the CPU: a few thousand numbers are there sooner than a GPU has started the first sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimind.base.errors import UserError
from minimind.inference.sampling import Sampling

Floats = NDArray[np.float32]


class Row:
    """The state of one answer: its generator, and the tokens seen (only with a repetition penalty)."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocab: int, row: int = 0) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(sampling.seed + row)
        self.seen: Tensor | None = None  # boolean [V]
        if sampling.repetition_penalty != 1.0:
            self.seen = torch.zeros(vocab, dtype=torch.bool)
            self.seen[torch.tensor(list(prompt))] = True

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature == 0


def choose(rows: Sequence[Row], logits: Tensor) -> list[int]:
    """``logits`` [B, V] -> the token of each row, which it has seen then. Raises UserError for logits that are NaN."""
    if any(row.seen is not None or not row.is_greedy for row in rows):
        logits = logits.float().cpu()
        if any(row.seen is not None for row in rows):
            logits = torch.stack([_penalised(row, each) for row, each in zip(rows, logits, strict=True)])
    tokens = _likeliest(logits)
    drawing = [i for i, row in enumerate(rows) if not row.is_greedy]
    if drawing:
        shares = _shares([rows[i].sampling for i in drawing], logits[drawing])
        for i, values in zip(drawing, shares, strict=True):
            tokens[i] = _draw(values, rows[i].sampling.top_p, rows[i].generator)
    for row, token in zip(rows, tokens, strict=True):
        if row.seen is not None:
            row.seen[token] = True
    return tokens


def _penalised(row: Row, logits: Tensor) -> Tensor:
    if row.seen is None:
        return logits
    penalty = row.sampling.repetition_penalty
    return torch.where(row.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def _likeliest(logits: Tensor) -> list[int]:
    """The likeliest token of each row of ``logits`` [B, V]."""
    logits = logits.float()
    # numpy's argmax takes a twelfth of the time of torch's on a CPU.
    found = logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(-1)
    tokens: list[int] = found.tolist()
    return tokens


def _shares(samplings: Sequence[Sampling], logits: Tensor) -> Floats:
    """Softmax [B, V] of ``logits`` [B, V] by each row's temperature, zero where top-k cuts."""
    logits = logits / torch.tensor([[sampling.temperature] for sampling in samplings])
    for sampling, row in zip(samplings, logits, strict=True):
        if 0 < sampling.top_k < len(row):
            row.masked_fill_(row < row.topk(sampling.top_k).values[-1], -torch.inf)
    shares: Floats = logits.softmax(-1).numpy()
    return shares


def _draw(values: Floats, top_p: float, generator: torch.Generator) -> int:
    if values[0] != values[0]:  # of one that is not a number no other is
        raise UserError("the model's output is not a number (NaN): its weights are broken")
    kept = _top_p(values, top_p) if top_p < 1 else None
    sums = (values if kept is None else values[kept]).cumsum(dtype=np.float64)
    # One uniform number decides, a tenth of the time of torch.multinomial, which draws one for every token.
    below = float(torch.rand((), dtype=torch.float64, generator=generator)) * float(sums[-1])
    place = min(int(np.searchsorted(sums, below, side="right")), len(sums) - 1)
    return place if kept is None else int(kept[place])


def _top_p(values: Floats, mass: float) -> NDArray[Any]:
    """The ids, ascending, of the likeliest of ``values`` [V] that reach ``mass``; of equal ones the lower ids first.
    The one that crosses it stays, so there is always one.

    Those below ``(1 - mass) / V`` add up to less than ``1 - mass``, so they are not among them: most of a vocabulary
    needs no sorting. By the values alone, which numpy sorts 25 times faster than torch sorts values with their places.
    """
    ids = np.flatnonzero(values >= np.float32((1 - mass) / len(values)))
    candidates = values[ids]
    ordered = np.sort(candidates)[::-1]
    count = min(int(np.searchsorted(ordered.cumsum(dtype=np.float64), mass)) + 1, len(ordered))
    least = ordered[count - 1]
    kept = candidates > least
    kept[np.flatnonzero(candidates == least)[: count - int(np.count_nonzero(kept))]] = True
    likeliest: NDArray[Any] = ids[kept]
    return likeliest
