"""The questions of the built-in corpus: five kinds, each in English and Chinese.

Contract: ``question(kind, language, held_out, rng)`` returns MiniMind turns (``role``, ``content``) that end with the
question and its answer; before them stands what the question is about, if the user tells that in turns of its own.
What the user says in a held-out question never occurs in training, at any size and any seed: sums, sortings and
translations by the item itself (``words.reserved``, so the pretraining text has none of them either), the others by
the text of all the user's turns. Answers follow from the question, except translation, whose words the pretraining
text teaches one by one and never in the reserved pairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from minimind.corpus.stories import addends, lexicon_nouns, sort_digits
from minimind.corpus.words import ADJECTIVES, ENGLISH, NOUNS, Language, Relation, reserved

Turns = list[dict[str, str]]
T = TypeVar("T")


def question(kind: str, language: Language, held_out: bool, rng: random.Random) -> Turns:
    """One question of a kind in ``QUESTION_KINDS``; redrawn until it belongs to the wanted side."""
    while True:
        turns = QUESTION_KINDS[kind](language, held_out, rng)
        if kind in DIVIDED_BY_ITEM or reserved(question_text(turns)) == held_out:
            return turns


def question_text(turns: Turns) -> str:
    """Everything the user says, one turn a line."""
    return "\n".join(turn["content"] for turn in turns if turn["role"] == "user")


def arithmetic(language: Language, held_out: bool, rng: random.Random) -> Turns:
    first = one(rng, [n for n in range(10, 90) if addends(n, held_out)])
    second = one(rng, addends(first, held_out))
    words = ("What is {}+{}?", "Please add {}+{}") if language is ENGLISH else ("{}+{}等于多少？", "请计算{}+{}")
    asks = (*words, "{}+{}")
    return dialogue(one(rng, asks).format(first, second), f"{first}+{second}={first + second}")


def attributes(language: Language, held_out: bool, rng: random.Random) -> Turns:
    """Three facts about two people or two places, and a question about one of them."""
    people = rng.random() < 0.5
    relations = language.person_relations if people else language.place_relations
    names = some(rng, language.people if people else language.places, 2)
    facts = [(n, r, one(rng, r.values)) for n, r in ((one(rng, names), r) for r in some(rng, relations, 3))]
    name, relation, value = one(rng, facts)
    lead, answer_lead = ("Facts: ", "You said ") if language is ENGLISH else ("", "")
    told = lead + language.space.join(n + r.verb + v + language.stop for n, r, v in facts)
    ask = told + language.space + relation.ask.format(subject=name)
    return dialogue(ask, answer_lead + name + relation.verb + value + language.stop)


def sorting(language: Language, held_out: bool, rng: random.Random) -> Turns:
    drawn: tuple[str, ...] = ()
    while len(drawn) < 4:
        left = sort_digits(drawn, held_out)
        drawn = (*drawn, one(rng, left)) if left else ()
    asks = ("Sort these digits: {}", "Put in order: {}") if language is ENGLISH else ("从小到大排列：{}", "请排序：{}")
    return dialogue(one(rng, asks).format(",".join(drawn)), ",".join(sorted(drawn)))


def translation(language: Language, held_out: bool, rng: random.Random) -> Turns:
    adjective = one(rng, [a for a in ADJECTIVES if lexicon_nouns(a, held_out)])
    noun = one(rng, lexicon_nouns(adjective, held_out))
    english, chinese = f"{adjective} {noun}", ADJECTIVES[adjective] + NOUNS[noun]
    if language is ENGLISH:
        return dialogue(one(rng, ("Translate into Chinese: {}", "In Chinese: {}")).format(english), chinese)
    return dialogue(one(rng, ("翻译成英语：{}", "用英语说：{}")).format(chinese), english)


def memory(language: Language, held_out: bool, rng: random.Random) -> Turns:
    """The user says who they are, perhaps one thing more in a turn of its own, and asks about one of them."""
    name = one(rng, language.people)
    told = some(rng, language.person_relations, 1 + int(rng.random() * 2))
    values = {relation: one(rng, relation.values) for relation in told}
    first, *more = [relation.my + values[relation] + language.stop for relation in told]
    asked: Relation | None = one(rng, (*told, None))
    if language is ENGLISH:
        opening, greeting, noted = f"Hello, my name is {name}. ", f"Hello, {name}.", "I see."
        by_name = ("What is my name?", f"Your name is {name}.")
    else:
        opening, greeting, noted = f"你好，我叫{name}。", f"你好，{name}。", "明白了。"
        by_name = ("我叫什么名字？", f"你叫{name}。")
    ask, answer = by_name if asked is None else (asked.ask_me, asked.your + values[asked] + language.stop)
    return dialogue(opening + first, greeting, *(turn for fact in more for turn in (fact, noted)), ask, answer)


QUESTION_KINDS: dict[str, Callable[[Language, bool, random.Random], Turns]] = {
    "arithmetic": arithmetic,
    "attributes": attributes,
    "sorting": sorting,
    "translation": translation,
    "memory": memory,
}
DIVIDED_BY_ITEM = ("arithmetic", "sorting", "translation")


def dialogue(*contents: str) -> Turns:
    """Contents of alternating user and assistant turns."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def one(rng: random.Random, items: Sequence[T]) -> T:
    """One item; only ``random.random()`` is used, whose values Python keeps the same between versions."""
    return items[int(rng.random() * len(items))]


def some(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """``count`` different items in random order."""
    left = list(items)
    return [left.pop(int(rng.random() * len(left))) for _ in range(count)]
