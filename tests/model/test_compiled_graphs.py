"""Recompilations over packed rows: how many graphs dynamo makes of real batches, without a GPU.

More than one for each kind of call would be a compilation in the middle of a run. Only dynamo runs, with
FlexAttention as on a GPU; what Inductor would generate does not depend on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention

from minimind.data.store.batches import Batch
from minimind.model.transformer import ModelConfig, Transformer

SMALL = ModelConfig.preset("tiny", num_hidden_layers=1)
KINDS: dict[str, tuple[dict[str, bool], Any]] = {
    "training": ({}, nullcontext),
    "by source": ({"by_row": True}, nullcontext),
    "held out": ({}, torch.no_grad),
}


def packed_differently(count: int, rows: int = 4, length: int = 64) -> list[Batch]:
    """Batches of one shape whose documents begin elsewhere and whose trainable tokens are others each time."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for index in range(count):
        begins = torch.rand((rows, length), generator=generator) < 0.02 * (index + 1)
        ids = torch.randint(1, 100, (rows, length), generator=generator)
        labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) < 0.2 * index, -100)
        documents = begins.cumsum(1)
        batches.append(Batch(ids, labels, documents * 0, documents, (0,) * rows, int((labels != -100).sum())))
    return batches


def graphs_of(batches: Sequence[Batch], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Graphs made of training steps, of steps with the loss by source and of an evaluation."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)  # a CPU has no kernel for the backward
    torch._dynamo.reset()
    made: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Sequence[Tensor]) -> Any:
        made.append(graph)
        return graph.forward

    model = Transformer(SMALL, seed=0)
    model.attention_backend = "flex"
    compiled, graphs = torch.compile(model, backend=backend), {}
    for kind, (how, context) in KINDS.items():
        before = len(made)
        for batch in batches:
            with context():
                compiled(batch.input_ids, batch.labels, batch.position_ids, batch.document_ids, **how)
        graphs[kind] = len(made) - before
    return graphs


def test_rows_packed_differently_are_one_graph_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape, a count or a branch that depends on where documents begin would make another graph."""
    assert graphs_of(packed_differently(3), monkeypatch) == {"training": 1, "by source": 1, "held out": 1}


def test_another_shape_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [*packed_differently(1), *packed_differently(1, rows=3)]
    assert graphs_of(shapes, monkeypatch)["training"] == 2
