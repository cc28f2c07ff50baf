"""Training a SentencePiece BPE vocabulary as sentencepiece_codec.py wants it: from texts to the bytes of a model."""

from __future__ import annotations

import heapq
import io
import random
import re
from collections.abc import Iterable

import sentencepiece

from minimind.base.errors import UserError
from minimind.text.codec import IM_END, IM_START, refuse_surrogates
from minimind.text.sentencepiece_codec import BOS_ID, EOS_ID, PAD_ID, SPACE_SYMBOL, UNK_ID

_TRAINING_BREAKS = re.compile("[\n\0\u2581\u2585]+")  # the trainer drops or misreads lines with the last three
_SECTION = 4096  # characters of training text sampled together


class TooLittleText(UserError):
    """The texts give fewer pieces than are wanted: ``most``."""

    def __init__(self, wanted: int, most: int) -> None:
        super().__init__(
            f"too little text for a vocabulary of {wanted}: these files give at most {most} pieces; "
            f"add text or use --vocab-size {most} or less"
        )
        self.most = most


def sample(texts: Iterable[str], limit: int, seed: int) -> list[str]:
    """Sections of the texts, all of them or, above `limit` bytes, those with the smallest random keys. UserError on a
    lone surrogate."""
    draw = random.Random(seed).random
    kept: list[tuple[float, int, int, str]] = []  # a heap: (minus key, arrival, bytes, section)
    total = arrival = 0
    for number, text in enumerate(texts):
        _refuse_surrogates_for_user(text, number)
        for start in range(0, len(text), _SECTION):
            section = text[start : start + _SECTION]
            size = len(section.encode("utf-8"))
            heapq.heappush(kept, (-draw(), arrival, size, section))
            total, arrival = total + size, arrival + 1
            while total > limit and len(kept) > 1:
                total -= heapq.heappop(kept)[2]
    return [section for _, _, _, section in sorted(kept, key=lambda item: item[1])]


def train(sections: list[str], vocab_size: int, character_coverage: float) -> bytes:
    """The model file. `TooLittleText`, or UserError for what else the trainer can't make of them."""
    lines = (line for section in sections for line in _TRAINING_BREAKS.split(section) if line)
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=lines,
            model_writer=written,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            byte_fallback=True,
            required_chars=SPACE_SYMBOL,  # else text without spaces gives a model that cannot write one
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,  # indentation becomes one token
            split_digits=True,
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            control_symbols=[IM_START, IM_END],
            max_sentence_length=8 * _SECTION,  # bytes; longer lines would be dropped, and no line is longer
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise _explain_training(str(error), vocab_size) from error
    return written.getvalue()


def _explain_training(message: str, vocab_size: int) -> UserError:
    """SentencePiece's reasons in our words; a reason that we don't know is passed on as it is."""
    if "!sentences_.empty()" in message:
        return UserError("no text to train the tokenizer on: the files are empty; give a file with text")
    if found := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return TooLittleText(vocab_size, int(found[1]))
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"a vocabulary of {vocab_size} is too small for the characters of these files; "
            f"use --vocab-size {found[1]} or more"
        )
    return UserError(f"SentencePiece could not train the tokenizer: {message.strip()}")


def _refuse_surrogates_for_user(text: str, number: int) -> None:
    try:
        refuse_surrogates(text, f"text {number + 1}: ")
    except ValueError as error:
        raise UserError(f"{error}; remove it from the file") from None
