"""The log-likelihood of each choice after its context, in nats: the sum over the choice's tokens.

Contract. Tokens are split as in lm-evaluation-harness: bos, then the context without the spaces at its end; a choice's
tokens are those of context and choice together, less as many as the context alone has. What exceeds the model's
positions is cut from the left, bos first, as there. A result depends on its question alone, up to rounding.

A context is read once for all of its choices: they follow it in one row, each at the positions after it, and see it
and themselves (`Branches`). Four endings of 20 tokens after a context of 60 are 140 tokens instead of 320. Rows of like
length share a batch; logits exist only where a choice's tokens are predicted, some at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minimind.base.defaults import loss_chunk
from minimind.base.errors import UserError
from minimind.inference.choices.questions import DELIMITER, Question
from minimind.model import attention
from minimind.model.ops import linear
from minimind.model.transformer import KVCache, Transformer
from minimind.text.tokenizer import Tokenizer

BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}  # of a batch of rows, padding included

Ids = list[int]


@dataclass(frozen=True)
class Row:
    """A context and what may follow it; ``places``: (question, choice) of each."""

    context: Ids
    choices: list[Ids]
    places: list[tuple[int, int]]

    @property
    def size(self) -> int:
        """Tokens that are read: the last one of a choice is only predicted."""
        return len(self.context) + sum(len(choice) - 1 for choice in self.choices)


def tokens_of(question: Question, tokenizer: Tokenizer) -> tuple[Ids, list[Ids]]:
    """The ids of the context, and of each choice after it. UserError where a choice has none of its own."""
    context = question.context.rstrip()
    between = question.context[len(context) :] + DELIMITER
    start = [tokenizer.bos_id, *tokenizer.encode(context)]
    wholes = [[tokenizer.bos_id, *tokenizer.encode(context + between + choice)] for choice in question.choices]
    choices = [whole[len(start) :] for whole in wholes]
    if not all(choices):
        raise UserError(f"{question}: a choice melts into the question's last token: it can't be scored by itself")
    return start, choices


def rows_of(index: int, context: Ids, choices: list[Ids], limit: int) -> list[Row]:
    """One row for all choices, or one for each where ``limit`` positions are too few and the context is cut."""
    if len(context) + max(map(len, choices)) - 1 <= limit:
        return [Row(context, choices, [(index, place) for place in range(len(choices))])]
    return [
        Row(context[-(limit + 1 - len(choice)) :], [choice], [(index, place)]) for place, choice in enumerate(choices)
    ]


class Branches(KVCache):
    """Rows of a context and branches that go on from it: each sees the context and itself. It keeps nothing.

    ``branches`` [B, T]: 0 in the context, from 1 on in what follows it, -1 in padding. ``position_ids`` [B, T].
    """

    def __init__(self, branches: Tensor, position_ids: Tensor) -> None:
        self.branches, self.position_ids = branches, position_ids

    def positions(self, count: int) -> Tensor:
        """Those given: every branch goes on counting from its context."""
        return self.position_ids

    def plan(self, count: int) -> attention.AttentionPlan:
        """Causal, within the branch and to the context; padding sees itself, for a softmax over nothing is 0/0."""
        own, other = self.branches[:, :, None], self.branches[:, None, :]
        return attention.DenseMask(((own == other) | ((other == 0) & (own > 0))).tril_()[:, None])

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The row is read whole: what is there is what came."""
        return k, v

    def advance(self, count: int) -> None:
        """There is no next step."""


@torch.inference_mode()
def log_likelihoods(
    model: Transformer, rows: Sequence[Row], say: Callable[[int], None] | None = None
) -> dict[tuple[int, int], float]:
    """Nats of each (question, choice), at most 0. ``say``: told how many rows are done. UserError for NaN."""
    found: dict[tuple[int, int], float] = {}
    done = 0
    for batch in _batches(rows, BATCH_TOKENS.get(model.output_weight.device.type, BATCH_TOKENS["cpu"])):
        sums = _score(model, batch).tolist()
        places = [place for row in batch for place in row.places]
        found.update(zip(places, sums, strict=True))
        done += len(batch)
        if say is not None:
            say(done)
    if any(value != value for value in found.values()):
        raise UserError("the model's output is not a number (NaN): its weights are broken")
    return found


def _batches(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """The rows, longest first, as many at a time as ``budget`` tokens hold; one at least."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: -row.size):
        if batch and (len(batch) + 1) * batch[0].size > budget:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _score(model: Transformer, rows: Sequence[Row]) -> Tensor:
    """Log-likelihoods, float64 [choices of all rows]."""
    width = max(row.size for row in rows)
    laid = [_laid_out(row, width) for row in rows]
    device = model.output_weight.device
    ids, branches, positions = (torch.tensor([row[part] for row in laid], device=device) for part in range(3))
    hidden = model.hidden_states(ids, cache=Branches(branches, positions)).flatten(0, 1)  # [B * T, H]
    read = [number * width + place for number, row in enumerate(laid) for place in row[3]]
    choices = [choice for row in rows for choice in row.choices]
    targets = torch.tensor([token for choice in choices for token in choice], device=device)
    losses = _log_probabilities(model, hidden[torch.tensor(read, device=device)], targets)
    owners = torch.repeat_interleave(torch.arange(len(choices)), torch.tensor([len(choice) for choice in choices]))
    return torch.zeros(len(choices), dtype=torch.float64).index_add_(0, owners, losses)


def _laid_out(row: Row, width: int) -> tuple[Ids, Ids, Ids, Ids]:
    """Ids, branches and positions of the row, padded to ``width``, and where each token of each choice is predicted."""
    start = len(row.context)
    ids, branches, positions = [*row.context], [0] * start, list(range(start))
    read: Ids = []
    for number, choice in enumerate(row.choices, 1):
        read += [start - 1, *range(len(ids), len(ids) + len(choice) - 1)]
        ids += choice[:-1]
        branches += [number] * (len(choice) - 1)
        positions += range(start, start + len(choice) - 1)
    rest = width - len(ids)
    return ids + [0] * rest, branches + [-1] * rest, positions + [0] * rest, read


def _log_probabilities(model: Transformer, hidden: Tensor, targets: Tensor) -> Tensor:
    """Of ``targets`` [n] after ``hidden`` [n, H]: float64 [n] on the CPU."""
    weight, found = model.output_weight, []
    size = loss_chunk(weight.device.type, weight.shape[0])
    for states, wanted in zip(hidden.split(size), targets.split(size), strict=True):
        logits = linear(states, weight).float().log_softmax(-1)  # [chunk, V]
        found.append(logits.gather(1, wanted[:, None])[:, 0])
    return torch.cat(found).double().cpu()
