"""What a run says of itself: here, the least possible loss on the built-in corpus's held-out texts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minimind.corpus.corpus import write_demo
from minimind.data.store.prepare import prepare
from minimind.data.store.store import TokenStore
from minimind.text.tokenizer import Tokenizer
from minimind.training.run.summary import _floor


def test_the_floor_is_known_for_the_whole_held_out_file_of_the_corpus(files: dict[str, Path], tmp_path: Path) -> None:
    corpus = write_demo(tmp_path / "corpus", num_pretrain=5, num_sft=5, num_eval=8, num_sft_eval=5)

    def floor(*paths: Path) -> float | None:
        path = prepare([*paths], Tokenizer.load(files["tokenizer"]), tmp_path / "-".join(path.stem for path in paths))
        data: Any = SimpleNamespace(held_out=TokenStore.open(path))
        return _floor(data)

    assert floor(corpus.eval) == pytest.approx(0.4, abs=0.3)
    assert floor(corpus.pretrain) is None  # other texts beside the same floor.json
    assert floor(corpus.eval, corpus.pretrain) is None
    corpus.floor.write_text("{")
    assert floor(corpus.eval) is None
    nothing: Any = SimpleNamespace(held_out=None)
    assert _floor(nothing) is None
