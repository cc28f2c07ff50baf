"""The built-in corpus: its probabilities are exact, and what is held out stays out of training."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path

import pytest

from minimind.corpus import corpus as demo
from minimind.corpus.conversations import MOST, held_out_kind, held_out_place
from minimind.corpus.corpus import (
    VOCABULARY,
    conversations,
    floor_of,
    kept_demo,
    texts,
    train_demo_tokenizer,
    write_demo,
)
from minimind.corpus.grammar import (
    END,
    Manuscript,
    Writer,
    document_nats,
    enumerate_documents,
    require_prefix_free,
    sample_document,
)
from minimind.corpus.questions import QUESTION_KINDS, Turns
from minimind.corpus.stories import KINDS, OPENINGS, write_day, write_document, write_word
from minimind.corpus.words import ADJECTIVES, CHINESE, ENGLISH, LANGUAGES, NOUNS, reserved
from minimind.text.tokenizer import Tokenizer


def small_grammar(draft: Manuscript) -> None:
    """Uneven choices, a choice that depends on an earlier one, and an end after one to three items."""
    subject = draft.pick(["cat", "dog"], weights=[3, 1], then=" ")
    for count in range(3):
        draft.pick(["runs", "sits", "eats"][: 3 - subject], weights=[1, 2, 4][: 3 - subject])
        if count == 2 or draft.pick([", ", END], weights=[1, 3]) == 1:
            break
    else:
        raise AssertionError
    if count == 2:
        draft.say(END)


def one_day(draft: Manuscript) -> None:
    write_day(draft, ENGLISH)
    draft.say(END)


def one_word(draft: Manuscript) -> None:
    write_word(draft, CHINESE)
    draft.say(END)


def plug_in_entropy(samples: list[str]) -> float:
    """Entropy in nats of observed texts from their counts alone, with the Miller-Madow correction."""
    counts, total = Counter(samples), len(samples)
    naive = -sum(c / total * math.log(c / total) for c in counts.values())
    return naive + (len(counts) - 1) / (2 * total)


@pytest.mark.parametrize("writer", [small_grammar, one_day, one_word])
def test_probabilities_of_all_texts_sum_to_one(writer: Writer) -> None:
    everything = list(enumerate_documents(writer))
    assert math.fsum(math.exp(-nats) for _, nats in everything) == pytest.approx(1, abs=1e-12)
    assert len({text for text, _ in everything}) == len(everything), "two runs of choices gave the same text"
    assert all(document_nats(writer, text) == pytest.approx(nats) for text, nats in everything)


def test_enumeration_finds_every_text_of_the_small_grammar() -> None:
    # 3 + 9 + 27 texts about the cat, 2 + 4 + 8 about the dog
    assert len(list(enumerate_documents(small_grammar))) == 39 + 14


@pytest.mark.parametrize("writer", [small_grammar, one_word])
def test_floor_equals_brute_force_and_monte_carlo_entropy(writer: Writer) -> None:
    exact = math.fsum(math.exp(-nats) * nats for _, nats in enumerate_documents(writer))
    rng = random.Random(7)
    drawn = [sample_document(writer, rng) for _ in range(40_000)]
    mean_nats = math.fsum(nats for _, nats in drawn) / len(drawn)
    deviation = math.sqrt(math.fsum((nats - exact) ** 2 for _, nats in drawn)) / len(drawn)
    assert abs(mean_nats - exact) <= 4 * deviation + 1e-9
    assert plug_in_entropy([text for text, _ in drawn]) == pytest.approx(exact, abs=0.02)  # counts only, no p


def test_frequencies_follow_the_stated_probabilities() -> None:
    rng, total = random.Random(3), 40_000
    counts = Counter(sample_document(small_grammar, rng)[0] for _ in range(total))
    for text, nats in enumerate_documents(small_grammar):
        p = math.exp(-nats)
        assert abs(counts[text] - total * p) <= 5 * math.sqrt(total * p * (1 - p)) + 1e-9, text


def test_an_ambiguous_choice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'1' begins '12'"):
        require_prefix_free(("12", "2", "1"))
    with pytest.raises(ValueError, match="ambiguous"):
        require_prefix_free(("red", "red"))
    require_prefix_free(("1,", "12,"))


def test_floor_of_a_corpus_can_be_read_off_its_texts_alone() -> None:
    drawn = list(islice(texts(seed=5, held_out=True), 200))
    floor = floor_of(text for text, _ in drawn)
    assert floor.nats == pytest.approx(math.fsum(nats for _, nats in drawn))
    assert floor.utf8_bytes == sum(len(text.encode("utf-8")) for text, _ in drawn)
    assert floor.nats_per_byte == floor.nats / floor.utf8_bytes
    assert floor.nats_per_prediction(1000) == floor.nats / 1000


@pytest.mark.parametrize("change", ["drop the end", "swap an answer", "append"])
def test_a_text_outside_the_grammar_has_no_probability(change: str) -> None:
    text = next(text for text, _ in texts(0, False) if text.startswith(OPENINGS["sums", "en"]))
    spoilt = {"drop the end": text[:-1], "swap an answer": text[:-1] + chr(ord(text[-1]) ^ 1), "append": text + " "}
    with pytest.raises(ValueError, match="not a text of this grammar"):
        document_nats(write_document, spoilt[change])


def test_every_kind_of_text_appears_at_its_rate() -> None:
    drawn = [text for text, _ in islice(texts(0, False), 2000)]
    for (kind, _), opening in OPENINGS.items():
        share = KINDS[kind] / (2 * sum(KINDS.values()))
        expected, deviation = 2000 * share, math.sqrt(2000 * share)
        assert abs(sum(text.startswith(opening) for text in drawn) - expected) < 5 * deviation
    assert {kind for kind, _ in OPENINGS} == set(KINDS)


def test_a_kept_corpus_is_written_again_only_if_it_is_not_this_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def small(directory: Path) -> None:
        written.append(directory)
        write_demo(directory, num_pretrain=3, num_sft=3, num_eval=3, num_sft_eval=3)

    monkeypatch.setattr(demo, "write_demo", small)
    files = kept_demo(tmp_path)
    assert kept_demo(tmp_path) == files and len(written) == 1
    files.sft.unlink()
    assert kept_demo(tmp_path).sft.is_file() and len(written) == 2
    (tmp_path / "made_by").write_text("another version")
    kept_demo(tmp_path)
    assert len(written) == 3


def test_same_seed_same_bytes_and_a_small_corpus_begins_a_large_one(tmp_path: Path) -> None:
    small = write_demo(tmp_path / "a", seed=1, num_pretrain=30, num_sft=20, num_eval=10, num_sft_eval=10)
    again = write_demo(tmp_path / "b", seed=1, num_pretrain=30, num_sft=20, num_eval=10, num_sft_eval=10)
    large = write_demo(tmp_path / "c", seed=1, num_pretrain=60, num_sft=40, num_eval=10, num_sft_eval=10)
    other = write_demo(tmp_path / "d", seed=2, num_pretrain=30, num_sft=20, num_eval=10, num_sft_eval=10)
    for name in ("pretrain", "sft", "eval", "sft_eval", "floor"):
        assert getattr(small, name).read_bytes() == getattr(again, name).read_bytes()
        if name != "floor":
            assert getattr(large, name).read_bytes().startswith(getattr(small, name).read_bytes())
            assert getattr(small, name).read_bytes() != getattr(other, name).read_bytes()


def test_floor_file_is_the_held_out_files_own(tmp_path: Path) -> None:
    files = write_demo(tmp_path, num_pretrain=5, num_sft=5, num_eval=50, num_sft_eval=5)
    held_out = [json.loads(line)["text"] for line in files.eval.read_text(encoding="utf-8").splitlines()]
    report = json.loads(files.floor.read_text())
    assert {name: report[name] for name in asdict(floor_of(held_out))} == asdict(floor_of(held_out))
    assert report["nats_per_byte"] == pytest.approx(floor_of(held_out).nats_per_byte)
    assert report["documents"] == 50


def test_every_ten_held_out_questions_are_one_of_each_kind_in_each_language() -> None:
    asked = list(islice(conversations(0, held_out=True), 100))
    for start in range(0, 100, 10):
        last = [turns[-2]["content"] for turns in asked[start : start + 10]]
        chinese = [bool(re.search("[\u4e00-\u9fff]", text)) for text in last]
        sums = [n for n, text in enumerate(last) if re.search(r"\d\+\d", text)]
        assert chinese[1:5] + chinese[6:] in ([False] * 2 + [True, False] + [True] * 4, [False] * 4 + [True] * 4)
        assert sums == [0, 5]
    assert all([t["role"] for t in turns] == ["user", "assistant"] * (len(turns) // 2) for turns in asked)


def test_half_of_each_kind_come_second_or_third() -> None:
    places = Counter((held_out_kind(n), held_out_place(n)) for n in range(100))
    assert all(places[kind, 1] == 10 for kind in QUESTION_KINDS)
    assert all(places[kind, place] >= 4 for kind in QUESTION_KINDS for place in (2, 3))
    for number, turns in enumerate(islice(conversations(0, held_out=True), 40)):
        assert len(questions_of(turns)) == held_out_place(number)


OPENINGS_OF_MEMORY = ("Hello, my name is", "你好，我叫")
ABOUT_THE_USER = re.compile(r"\b(my|I)\b|我")


def questions_of(turns: Turns) -> list[str]:
    """The questions of a conversation, each with what the user told for it: all that decides whether it is held out."""
    asked: list[str] = []
    told: list[str] = []
    for text in (turn["content"] for turn in turns if turn["role"] == "user"):
        if text.startswith(OPENINGS_OF_MEMORY) or (text.endswith((".", "。")) and ABOUT_THE_USER.search(text)):
            told.append(text)
        elif told and ABOUT_THE_USER.search(text):
            asked.append("\n".join([*told, text]))
            told = []
        else:
            asked.append(text)
    assert not told
    return asked


@pytest.mark.parametrize("train_seed", [0, 1])
def test_no_held_out_question_occurs_in_training(train_seed: int) -> None:
    """Neither one that counts nor one before it, wherever they stand in a training conversation."""
    asked = {q for turns in islice(conversations(0, held_out=True), 1500) for q in questions_of(turns)}
    trained = {q for turns in islice(conversations(train_seed, held_out=False), 3000) for q in questions_of(turns)}
    assert len(asked) > 1500 and len(trained) > 4000
    assert not asked & trained


def test_a_training_conversation_has_up_to_ten_questions_in_any_order_and_language() -> None:
    drawn = [questions_of(turns) for turns in islice(conversations(0, held_out=False), 2000)]
    counts = Counter(map(len, drawn))
    assert all(counts[n] > 20 for n in range(1, MOST + 1)) and max(counts) == MOST
    mixed = sum(any("What" in q for q in asked) and any("？" in q for q in asked) for asked in drawn)
    assert mixed > 200, "of some 400 that are longer than one question"


def test_other_questions_come_between_what_is_told_and_what_is_asked_of_it() -> None:
    between: Counter[int] = Counter()
    for turns in islice(conversations(0, held_out=False), 2000):
        asked = [turn["content"] for turn in turns if turn["role"] == "user"]
        own = [n for n, text in enumerate(asked) if ABOUT_THE_USER.search(text)]
        for before, n in pairwise(own):
            if not asked[n].startswith(OPENINGS_OF_MEMORY):
                between[n - before - 1] += 1
    assert all(between[n] > 50 for n in range(3)) and max(between) == 2


def test_no_held_out_answer_occurs_in_any_training_text() -> None:
    """The items themselves: held-out sums, sortings and translations, in pretraining and SFT text."""
    corpus = "\n".join(text for text, _ in islice(texts(0, False), 4000))
    corpus += "\n".join(turn["content"] for turns in islice(conversations(0, False), 3000) for turn in turns)
    sums = re.findall(r"(\d\d)\+(\d\d)", corpus)
    assert len(sums) > 2000
    assert not any(reserved("sum", *sorted((int(a), int(b)))) for a, b in sums)
    orders = re.findall(r"\d,\d,\d,\d", corpus)
    assert len(orders) > 2000
    assert not any(reserved("sort", *sorted(o.split(","))) for o in orders)
    pairs = [(a, n) for a in ADJECTIVES for n in NOUNS if reserved("word", a, n)]
    assert pairs
    assert not [p for p in pairs if f"{p[0]} {p[1]}" in corpus or ADJECTIVES[p[0]] + NOUNS[p[1]] in corpus]


def test_held_out_texts_are_not_training_texts() -> None:
    held_out = {text for text, _ in islice(texts(0, True), 300)}
    assert not held_out & {text for text, _ in islice(texts(0, False), 2500)}


def test_answers_are_right() -> None:
    seen: Counter[str] = Counter()
    pairs = [
        (turns[n]["content"], turns[n + 1]["content"])
        for turns in islice(conversations(3, held_out=False), 400)
        for n in range(0, len(turns), 2)
    ]
    for question, answer in pairs:
        if numbers := re.search(r"(\d+)\+(\d+)", question):
            a, b = map(int, numbers.groups())
            assert answer == f"{a}+{b}={a + b}"
            seen["sum"] += 1
        elif digits := re.search(r"\d,\d,\d,\d", question):
            assert answer == ",".join(sorted(digits[0].split(",")))
            seen["order"] += 1
        elif question.startswith("Facts: "):
            assert answer.removeprefix("You said ") in question, "the fact asked for stands in the question"
            seen["fact"] += 1
    assert all(seen[kind] >= 40 for kind in ("sum", "order", "fact")), seen


def test_every_word_of_a_reserved_translation_is_taught() -> None:
    """A held-out pair can be answered: its adjective and its noun both occur in training, in other pairs."""
    for adjective in ADJECTIVES:
        assert any(not reserved("word", adjective, noun) for noun in NOUNS)
    for noun in NOUNS:
        assert any(not reserved("word", adjective, noun) for adjective in ADJECTIVES)


def test_the_tokenizer_knows_every_name_and_value_as_one_piece(tmp_path: Path) -> None:
    """What a model has to look up and copy is one token, and no name has grown into its question."""
    files = write_demo(tmp_path, num_pretrain=6000, num_sft=4000, num_eval=5, num_sft_eval=5)
    tokenizer = Tokenizer.load(train_demo_tokenizer(files, tmp_path / "tokenizer"))
    assert tokenizer.vocab_size == VOCABULARY
    for name in (*ENGLISH.people, *ENGLISH.places):
        assert len(tokenizer.encode(f" {name}")) == 1, name
        assert tokenizer.encode(f" {name} is near")[0] == tokenizer.encode(f" {name}")[0]
    for name in (*CHINESE.people, *CHINESE.places):
        alone = tokenizer.encode(name)
        assert len(alone) == 1, name
        assert all(tokenizer.encode(name + r.verb)[0] == alone[0] for r in CHINESE.person_relations)
    for text, _ in islice(texts(0, True), 100):
        assert max(tokenizer.encode(text)) < tokenizer.vocab_size
        assert not [t for t in tokenizer.encode(text) if 6 <= t < 262], "a character without a piece"


def test_languages_have_the_same_structure() -> None:
    for language in LANGUAGES:
        assert len(language.person_relations) == 4
        assert len({r.verb for r in (*language.person_relations, *language.place_relations)}) == 7
    assert len(ENGLISH.people) == len(CHINESE.people)
    assert len(ENGLISH.places) == len(CHINESE.places)
