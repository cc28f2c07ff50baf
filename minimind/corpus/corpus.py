"""The built-in corpus: generated, bilingual, any size, a function of the seed alone, with a known entropy floor.

    pretrain.jsonl   {"text": ...}                           stories, sums, sorted digits, a lexicon (stories.py)
    eval.jsonl       {"text": ...}                           held-out texts of the same grammar
    sft.jsonl        {"conversations": [{"role", "content"}]}  up to ten questions in a row (conversations.py)
    sft_eval.jsonl   {"conversations": ...}                  one to three held-out questions; each kind ends one in turn
    floor.json       the exact -log p of eval.jsonl under the generator that wrote it

Contract: the same seed gives the same bytes on every machine, and a smaller corpus is the beginning of a larger one.
Whether an item is held out depends on the item alone (``words.reserved``), so no held-out text or question is in
any training file of any seed and size. No model can have a lower expected loss on eval.jsonl than the floor; a finite
file fluctuates around it, and the floor here is that very file's -log p, so that the ratio does not.

Known weakness: held-out texts are those whose checksum says so. The share is one in ``RESERVED_SHARE``, which no model
can exploit, but strictly the held-out distribution is the grammar's, given that checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

from minimind.base.errors import UserError
from minimind.base.files import read_inside, replacing, subdirectory, write_durably
from minimind.base.strict.json_text import read_json
from minimind.corpus.conversations import held_out_conversation, training_conversation
from minimind.corpus.grammar import document_nats, sample_document
from minimind.corpus.questions import Turns
from minimind.corpus.stories import write_document
from minimind.corpus.words import reserved
from minimind.text.tokenizer import FILE_NAME

FLOOR_FILE = "floor.json"
VOCABULARY = 800
"""Pieces for this corpus's words, and not yet for what stands beside them: a value that is told as 我喜欢|白色 and
asked for as 喜欢白色 in one piece can't be looked up and copied (docs/LOG.md)."""


@dataclass(frozen=True)
class Floor:
    """The least loss that any model can have on a set of texts, summed over all of them."""

    nats: float
    documents: int
    characters: int
    utf8_bytes: int

    @property
    def nats_per_byte(self) -> float:
        return self.nats / self.utf8_bytes

    def nats_per_prediction(self, predictions: int) -> float:
        """The floor of a mean loss over ``predictions`` tokens: each text's tokens and its eos, bos being given."""
        return self.nats / predictions


@dataclass(frozen=True)
class DemoFiles:
    """Where ``write_demo`` put everything."""

    pretrain: Path
    eval: Path
    sft: Path
    sft_eval: Path
    floor: Path


def texts(seed: int, held_out: bool) -> Iterator[tuple[str, float]]:
    """An endless run of pretraining texts with their exact -log p in nats (the document's end included)."""
    number = 0
    while True:
        text, nats = sample_document(write_document, _rng(seed, "text", held_out, number))
        number += 1
        if reserved("text", text) == held_out:
            yield text, nats


def conversations(seed: int, held_out: bool) -> Iterator[Turns]:
    """An endless run of conversations. Held out: every ten end with each kind in each language once."""
    for number in count():
        rng = _rng(seed, "conversation", held_out, number)
        yield held_out_conversation(number, rng) if held_out else training_conversation(rng)


def floor_of(held_out_texts: Iterable[str]) -> Floor:
    """The exact floor of texts of this grammar, from the texts alone. ValueError for any other text."""
    lines = list(held_out_texts)
    return Floor(
        nats=sum(document_nats(write_document, text) for text in lines),
        documents=len(lines),
        characters=sum(map(len, lines)),
        utf8_bytes=sum(len(text.encode()) for text in lines),
    )


def write_demo(
    directory: str | Path,
    seed: int = 0,
    num_pretrain: int = 16000,
    num_sft: int = 16000,
    num_eval: int = 400,
    num_sft_eval: int = 200,
) -> DemoFiles:
    """Write the corpus into ``directory`` (made if absent; an earlier corpus is replaced). Sizes are in documents.

    Raises UserError when another file has one of the names.
    """
    files = _files(Path(directory))
    _refuse_others(files)
    Path(directory).mkdir(parents=True, exist_ok=True)
    held_out = [text for text, _ in islice(texts(seed, True), num_eval)]
    floor = floor_of(held_out)
    report = {"nats_per_byte": floor.nats_per_byte, **asdict(floor), "seed": seed}
    write_durably(files.floor, json.dumps(report, indent=2) + "\n")  # first: it says whose directory this is
    _write_lines(files.pretrain, ({"text": text} for text, _ in islice(texts(seed, False), num_pretrain)))
    _write_lines(files.sft, ({"conversations": c} for c in islice(conversations(seed, False), num_sft)))
    _write_lines(files.sft_eval, ({"conversations": c} for c in islice(conversations(seed, True), num_sft_eval)))
    _write_lines(files.eval, ({"text": text} for text in held_out))
    return files


def kept_demo(directory: str | Path) -> DemoFiles:
    """The corpus of ``write_demo(directory)``, written where this version's is not there as it was (two seconds)."""
    files, stamp = _files(Path(directory)), Path(directory) / "made_by"
    every = list(vars(files).values())
    if not _stamped(stamp, every):
        stamp.unlink(missing_ok=True)
        write_demo(directory)
        write_durably(stamp, _stamp(every))
    return files


def kept_demo_tokenizer(files: DemoFiles, directory: Path) -> Path:
    """The directory of a tokenizer trained on the kept corpus, trained only where it is not there as it was."""
    output, stamp = subdirectory(directory, "tokenizer"), directory / "tokenizer_made_by"
    if not _stamped(stamp, [output / FILE_NAME]):
        write_durably(stamp, _stamp([train_demo_tokenizer(files, output)]))
    return output


def _stamped(stamp: Path, files: Sequence[Path]) -> bool:
    """Whether ``stamp`` says that these files are of this version and with these contents."""
    try:
        return read_inside(stamp.parent, stamp.name).decode("utf-8", "replace") == _stamp(files)
    except OSError:
        return False


def _stamp(files: Sequence[Path]) -> str:
    """What makes the corpus (this module and its parts) and what the files hold, as one hash. OSError."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    for file in files:
        digest.update(hashlib.sha256(read_inside(file.parent, file.name)).digest())
    return digest.hexdigest()


def _refuse_others(files: DemoFiles) -> None:
    there = [file for file in vars(files).values() if os.path.lexists(file)]
    try:
        report = read_json(files.floor.parent, files.floor.name)
        ours = {"nats_per_byte", "utf8_bytes", "seed"} <= set(report)
    except (OSError, ValueError, TypeError):
        ours = False
    if there and not ours:
        raise UserError(
            f"{there[0]}: is there, and its directory has no {FLOOR_FILE} of this corpus: name another directory"
        )


def _files(root: Path) -> DemoFiles:
    names = ("pretrain.jsonl", "eval.jsonl", "sft.jsonl", "sft_eval.jsonl", FLOOR_FILE)
    return DemoFiles(*(root / name for name in names))


def train_demo_tokenizer(files: DemoFiles, output: str | Path) -> Path:
    """A tokenizer of ``VOCABULARY`` pieces with every character of the corpus; the model file's path."""
    from minimind.data.records.rejects import Tally
    from minimind.data.records.texts import read_texts
    from minimind.text.tokenizer import train_tokenizer

    strict = Tally(skip_bad=False, max_bad_ratio=0.0, quarantine=Path(f"{output}.rejected.jsonl"))
    corpus = read_texts([files.pretrain, files.sft], strict)
    return train_tokenizer(corpus, output, VOCABULARY, character_coverage=1.0)


def _rng(*parts: object) -> random.Random:
    """One generator a document, so that a document depends on its own number only."""
    return random.Random("|".join(map(str, parts)))


def _write_lines(file: Path, records: Iterable[object]) -> None:
    with replacing(file) as stream:
        stream.writelines(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)
