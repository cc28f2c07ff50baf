"""minimind.data.store.mixture: every source by its weight, an order of seed and epoch only, exact counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimind.base.errors import UserError
from minimind.data.store.batches import Batches
from minimind.data.store.mixture import Mixture, Part
from minimind.data.store.store import StoreWriter, TokenStore

ROW = 32
FILES = (60, 30, 45)  # documents of each file


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    rng = np.random.default_rng(0)
    writer = StoreWriter(tmp_path_factory.mktemp("s") / "store", 1000)
    totals = []
    for file, documents in enumerate(FILES):
        lengths = rng.integers(2, 80, documents).tolist()
        for line, n in enumerate(lengths):
            writer.add([1, *rng.integers(10, 1000, n - 2).tolist(), 2], None, file, line + 1, n)
        tokens = sum(lengths)
        totals.append(
            {
                "path": f"{file}.jsonl",
                "records": documents + 1,
                "rejected": 1,
                "documents": documents,
                "tokens": tokens,
                "trainable_tokens": tokens - documents,
            }
        )
    return TokenStore.open(writer.finish({"sources": totals}))


def parts(*weights: float) -> list[Part]:
    """Two sources: the first is a directory of two files."""
    return [Part("ab", weights[0], 2), Part("c", weights[1], 1)]


def batches(store: TokenStore, *weights: float, world: int = 1, seed: int = 3) -> Batches:
    return Batches(store, ROW, 8 // world, 1, world, seed, parts(*weights))


def trained(made: Batches, epochs: int) -> Counter[tuple[int, int, int]]:
    """How often each piece is trained in the first epochs."""
    steps = range(epochs * made.steps_per_epoch)
    return Counter(piece for step in steps for piece in made.documents(step))


def times(pieces: Counter[tuple[int, int, int]], first: bool) -> set[int]:
    border = FILES[0] + FILES[1]
    return {n for (document, _, _), n in pieces.items() if (document < border) == first}


def test_a_whole_weight_trains_every_piece_so_many_times(store: TokenStore) -> None:
    pieces = trained(batches(store, 2, 1), 1)
    assert times(pieces, first=True) == {2}
    assert times(pieces, first=False) == {1}
    assert sum(length for _, _, length in pieces) == store.num_trainable  # every prediction is there


def test_a_fraction_is_made_up_for_in_later_epochs(store: TokenStore) -> None:
    made = batches(store, 1, 0.5)
    assert len(times(trained(made, 1), first=False)) == 1
    rows = made.mixture.records()[1]["rows"] if made.mixture else 0
    after_two = trained(made, 2)
    assert times(after_two, first=True) == {2}
    # an odd number of rows: half of it is rounded, so at most one row comes a second time or not yet
    wanted = sum(length for document, _, length in after_two.elements() if document >= FILES[0] + FILES[1])
    assert abs(wanted - int((store.lengths[FILES[0] + FILES[1] :] - 1).sum())) <= ROW * (rows % 2)


def test_a_row_holds_one_source(store: TokenStore) -> None:
    rows = Mixture(store, parts(1, 1), ROW, 0).rows
    for first, last in zip(rows.row_offsets[:-1], rows.row_offsets[1:], strict=True):
        assert len({int(document) >= FILES[0] + FILES[1] for document in rows.document[first:last]}) == 1


def test_each_row_of_a_batch_names_its_source_and_its_trainable_tokens(store: TokenStore) -> None:
    made = Batches(store, ROW, 2, 2, 2, 3, parts(1, 1))
    border = FILES[0] + FILES[1]
    assert made.mixture is not None
    rows = made.mixture.rows
    sums = [0, 0]
    for step in range(made.steps_per_epoch):  # the last one has empty rows
        for batch in (b for rank in range(2) for b in made.micro_batches(step, rank)):
            assert sum(batch.row_tokens) == batch.num_trainable
            for row, source, tokens in zip(batch.rows, batch.row_sources, batch.row_tokens, strict=True):
                if row == -1:
                    assert (source, tokens) == (-1, 0)
                    continue
                first = int(rows.document[rows.row_offsets[row]])
                assert source == int(first >= border)
                sums[source] += tokens
    assert sums == [int((store.lengths[:border] - 1).sum()), int((store.lengths[border:] - 1).sum())]
    plain = Batches(store, ROW, 2, 2, 2, 3).micro_batches(0, 0)[0]
    assert (plain.row_sources, plain.row_tokens) == ((), ())


def test_a_path_given_twice_has_two_names(store: TokenStore) -> None:
    mixture = Mixture(store, [Part("ab", 1, 2), Part("ab", 2, 1)], ROW, 0)
    assert mixture.names == ["ab (1)", "ab (2)"]
    assert Mixture(store, parts(1, 1), ROW, 0).names == ["ab", "c"]


def test_the_order_depends_on_seed_and_epoch_only(store: TokenStore) -> None:
    one, two, other = (batches(store, 1.5, 0.3, world=w, seed=s) for w, s in ((1, 3), (2, 3), (1, 4)))
    steps = [*range(one.steps_per_epoch * 2)]
    assert [one.documents(s) for s in steps] == [two.documents(s) for s in reversed(steps)][::-1]
    assert [one.documents(s) for s in steps] != [other.documents(s) for s in steps]
    assert one.documents(0) != one.documents(one.steps_per_epoch)


def test_counts_of_each_source(store: TokenStore) -> None:
    mixture = Mixture(store, parts(2, 0.5), ROW, 0)
    first, second = mixture.records()
    assert (first["path"], first["weight"], first["files"], second["files"]) == ("ab", 2, 2, 1)
    assert (first["documents"], second["documents"]) == (90, 45)
    assert (first["records"], first["rejected"]) == (92, 2)
    assert first["tokens"] + second["tokens"] == store.num_tokens
    assert first["epoch_rows"] == 2 * first["rows"]
    assert second["epoch_rows"] == round(0.5 * second["rows"])
    assert mixture.num_rows == first["epoch_rows"] + second["epoch_rows"]
    whole = batches(store, 2, 1)
    steps = range(whole.steps_per_epoch)
    assert whole.epoch_tokens == sum(batch.num_trainable for step in steps for batch in whole.micro_batches(step, 0))


def test_files_that_are_not_those_of_the_sources_are_refused(store: TokenStore) -> None:
    with pytest.raises(UserError, match="holds 3 files, not those of the 1 sources"):
        Mixture(store, [Part("c", 1, 1)], ROW, 0)


@settings(max_examples=30, deadline=None)
@given(weight=st.floats(0.001, 5), epochs=st.integers(1, 4))
def test_no_row_is_ever_two_passes_ahead_of_another(store: TokenStore, weight: float, epochs: int) -> None:
    mixture = Mixture(store, parts(weight, 1), ROW, 7)
    about = mixture.records()[0]
    seen = np.concatenate([mixture.epoch(number) for number in range(epochs)])
    counts = np.bincount(seen[seen < about["rows"]], minlength=about["rows"])
    assert counts.max() - counts.min() <= 1
    assert counts.sum() == epochs * about["epoch_rows"]
