"""A text of special tokens and ordinary ones as ids, with the flags of the spans that are to be learnt.

Contract: the ids are those of the whole text, special tokens where the text's writer put them, everything between as
ordinary text; and no token lies on both sides of a span's edge, or NotRendered.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minimind.text.codec import Codec, strip_beside
from minimind.text.marks import Marks
from minimind.text.turn import NotRendered


@dataclass(frozen=True)
class Span:
    """Characters ``[start, end)`` of a marked rendering that message ``number`` says."""

    start: int
    end: int
    number: int


class Encoder:
    """Marked renderings as ids, by the codec of a tokenizer."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.special = {text: token for token, text in codec.special.items()}
        self.tokens = any_of(self.special)

    def encode(self, text: str, marks: Marks, spans: Sequence[Span]) -> tuple[list[int], list[bool]]:
        """Ids without the marks, and whether each lies in a span. NotRendered where a token crosses an edge."""
        ids: list[int] = []
        flags: list[bool] = []
        place, inside, begun = 0, _Inside(spans), False
        before: str | None = None
        edges = sorted({edge for span in spans for edge in (span.start, span.end)})
        for found in [*self.tokens.finditer(text), None]:
            end = found.start() if found else len(text)
            cuts = [place, *(edge for edge in edges if place < edge < end), end]
            pieces = [(start, marks.strip(text[start:stop])) for start, stop in itertools.pairwise(cuts)]
            pieces = self._beside(pieces, before, found[0] if found else None)
            for start, tokens in self._apart(pieces, begun):
                ids += tokens
                flags += [inside[start]] * len(tokens)
            begun = begun or bool(pieces or found)
            if found:
                ids.append(self.special[found[0]])
                flags.append(inside[found.start()])
                place, before = found.end(), found[0]
        return ids, flags

    def _beside(
        self, pieces: Sequence[tuple[int, str]], before: str | None, behind: str | None
    ) -> list[tuple[int, str]]:
        """The pieces between two special tokens (None: the text's ends), without the white space that these take in."""
        found = [piece for piece in pieces if piece[1]]
        neither = (False, False)
        while found and before is not None and self._codec.swallows.get(before, neither)[1]:
            found[0] = (found[0][0], strip_beside(found[0][1], (True, False)))
            if found[0][1]:
                break
            del found[0]
        while found and behind is not None and self._codec.swallows.get(behind, neither)[0]:
            found[-1] = (found[-1][0], strip_beside(found[-1][1], (False, True)))
            if found[-1][1]:
                break
            del found[-1]
        return found

    def _apart(self, pieces: Sequence[tuple[int, str]], begun: bool) -> list[tuple[int, list[int]]]:
        """The ids of each piece of one text, before which there may be others (``begun``). Encoding the whole text must
        give the same, cut at the same places."""
        if not pieces:
            return []
        texts = [text for _, text in pieces]
        alone = [self._ids(texts[0], begun), *self._codec.encode_inner(texts[1:])]
        if len(pieces) > 1 and list(itertools.chain(*alone)) != (whole := self._ids("".join(texts), begun)):
            cuts = [0, *(self._cut(whole, texts, n, begun) for n in range(1, len(texts))), len(whole)]
            alone = [whole[a:b] for a, b in itertools.pairwise(cuts)]
        return [(start, ids) for (start, _), ids in zip(pieces, alone, strict=True)]

    def _ids(self, text: str, begun: bool) -> list[int]:
        return self._codec.encode_behind([text])[0] if begun else self._codec.encode(text)

    def _cut(self, whole: Sequence[int], texts: Sequence[str], number: int, begun: bool) -> int:
        """How many of the whole text's tokens spell the pieces before ``number``, by the bytes that tokens spell.

        For tokenizers that begin every text they are given with a space of their own. NotRendered if a token crosses.
        """
        before, after = "".join(texts[:number]), "".join(texts[number:])
        head, tail = self._spelling(self._ids(before, begun)), self._spelling(self._ids(after, True))
        inner = self._spelling(self._codec.encode_inner([after])[0])
        sizes = [0, *itertools.accumulate(len(self._codec.text_bytes[token]) for token in whole)]
        cut = sizes.index(len(head)) if len(head) in sizes else None
        tails = (inner, tail, tail.removeprefix(b" ")) if self._codec.strips_space else (inner, tail)
        if cut is None or self._spelling(whole[:cut]) != head or self._spelling(whole[cut:]) not in tails:
            raise NotRendered(f"a token crosses the edge of an answer, at {before[-10:] + '|' + after[:10]!r}")
        return cut

    def _spelling(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._codec.text_bytes[token] for token in ids)


class _Inside:
    """Whether a place lies in one of some spans. Places are asked for in ascending order."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = iter(sorted(spans, key=lambda span: span.start))
        self._now = next(self._spans, None)

    def __getitem__(self, place: int) -> bool:
        while self._now is not None and self._now.end <= place:
            self._now = next(self._spans, None)
        return self._now is not None and self._now.start <= place


def any_of(spellings: Iterable[str]) -> re.Pattern[str]:
    """A pattern for the longest of the spellings at each place, as the tokenizers library finds them."""
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True))))
