"""The pretraining documents of the built-in corpus, as writers for ``grammar``.

Five kinds, each in English and Chinese: stories about two people, descriptions of two places, sums, sorted digits and a
small lexicon. Contract: every writer ends with ``END``, and no text holds a reserved sum, sorting or translation
(``words.reserved``). Stories state facts and give them back in the same document, which is what makes a small
model learn to copy; the values are drawn evenly, so the model has no favourite to guess.

Known weakness: in one story each relation is stated once, of one of the two subjects, so the verb alone finds the
value. Both subjects with a value of their own is what a model of this size doesn't learn in a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from minimind.corpus.grammar import END, Manuscript
from minimind.corpus.words import ADJECTIVES, CHINESE, DIGITS, ENGLISH, NOUNS, Language, Relation, reserved

KINDS = {"people": 3, "places": 3, "sums": 3, "sorting": 2, "lexicon": 2}
"""How often each kind is written: more of what takes a model longer to learn."""
OPENINGS = {
    ("people", "en"): "This is a story of ",
    ("people", "zh"): "故事里有",
    ("places", "en"): "Far away lie ",
    ("places", "zh"): "远方有",
    ("sums", "en"): "Sums: ",
    ("sums", "zh"): "算式：",
    ("sorting", "en"): "In order: ",
    ("sorting", "zh"): "排序：",
    ("lexicon", "en"): "Words: ",
    ("lexicon", "zh"): "词语：",
}

ITEMS = 3
"""Entries of a list document."""


def write_document(draft: Manuscript) -> None:
    """Write one document of any kind and language."""
    keys = list(OPENINGS)
    kind, code = keys[draft.pick(list(OPENINGS.values()), weights=[KINDS[kind] for kind, _ in keys])]
    language = ENGLISH if code == "en" else CHINESE
    if kind in ITEM_WRITERS:
        write_list(draft, language, ITEM_WRITERS[kind])
    else:
        write_story(draft, language, kind)


def write_story(draft: Manuscript, language: Language, kind: str) -> None:
    """Two subjects, statements about them, what happened one day, then questions with their answers."""
    names = language.people if kind == "people" else language.places
    relations = language.person_relations if kind == "people" else language.place_relations
    first = pick_one(draft, names, then=" and " if language is ENGLISH else "和")
    second = pick_one(draft, [name for name in names if name != first], then=language.stop + language.space)
    known = write_statements(draft, language, (first, second), relations)
    if kind == "people":
        write_day(draft, language)
    write_recalls(draft, language, known)
    draft.say(END)


Known = dict[tuple[str, Relation], str]


def write_statements(
    draft: Manuscript, language: Language, names: Sequence[str], relations: Sequence[Relation]
) -> Known:
    """State each relation once, in any order, of either subject; returns who and what."""
    known: Known = {}
    left = list(relations)
    while left:
        name = pick_one(draft, names)
        relation = left.pop(draft.pick([relation.verb for relation in left]))
        known[name, relation] = pick_one(draft, relation.values, then=language.stop + language.space)
    return known


def write_day(draft: Manuscript, language: Language) -> None:
    """One day: season, place and deed, free choices that nothing later depends on."""
    if language is ENGLISH:
        draft.say("One day in ")
        pick_one(draft, language.seasons, then=" they met at the ")
        pick_one(draft, language.spots, then=" and ")
        pick_one(draft, language.deeds, then=". ")
    else:
        pick_one(draft, language.seasons, then="里的一天，他们在")
        pick_one(draft, language.spots, then="见面，一起")
        pick_one(draft, language.deeds, then="。")


def write_recalls(draft: Manuscript, language: Language, known: Known) -> None:
    """As many questions as facts, each drawn afresh, and each answered with its statement.

    Drawn without putting back, a model would have to keep account of what has been asked to come near the floor.
    """
    facts = list(known)
    questions = [relation.ask.format(subject=name) for name, relation in facts]
    for number in range(len(facts)):
        name, relation = facts[draft.pick(questions, then=language.space)]
        draft.say(name + relation.verb + known[name, relation] + language.stop)
        draft.say(language.space if number < len(facts) - 1 else "")


def write_list(draft: Manuscript, language: Language, write_item: Callable[[Manuscript, Language], None]) -> None:
    """``ITEMS`` independent entries, one after the other."""
    for index in range(ITEMS):
        write_item(draft, language)
        draft.say(END if index == ITEMS - 1 else ";" + language.space)


def write_sum(draft: Manuscript, language: Language) -> None:
    """``23+45=68``: both numbers and the sum have two digits."""
    first = int(pick_one(draft, [str(n) for n in range(10, 90) if addends(n, reserve=False)], then="+"))
    second = int(pick_one(draft, [str(n) for n in addends(first, reserve=False)], then="="))
    draft.say(str(first + second))


def write_sorting(draft: Manuscript, language: Language) -> None:
    """``7,3,9,1->1,3,7,9``: four different digits."""
    drawn: list[str] = []
    for count in range(4):
        left = sort_digits(tuple(drawn), reserve=False)
        drawn.append(pick_one(draft, left, then="->" if count == 3 else ","))
    draft.say(",".join(sorted(drawn)))


def write_word(draft: Manuscript, language: Language) -> None:
    """``red apple=红苹果``, or the other way round in a Chinese document."""
    if language is ENGLISH:
        adjective = pick_one(draft, list(ADJECTIVES), then=" ")
        noun = pick_one(draft, lexicon_nouns(adjective, reserve=False), then="=")
        draft.say(ADJECTIVES[adjective] + NOUNS[noun])
    else:
        adjective = list(ADJECTIVES)[draft.pick(list(ADJECTIVES.values()))]
        nouns = lexicon_nouns(adjective, reserve=False)
        noun = nouns[draft.pick([NOUNS[n] for n in nouns], then="=")]
        draft.say(f"{adjective} {noun}")


ITEM_WRITERS = {"sums": write_sum, "sorting": write_sorting, "lexicon": write_word}


@cache
def addends(first: int, reserve: bool) -> tuple[int, ...]:
    """Second numbers beside ``first``, nothing to carry, in training (``reserve=False``) or held-out items."""
    fits = [n for n in range(10, 100 - first) if first % 10 + n % 10 < 10]
    return tuple(n for n in fits if reserved("sum", *sorted((first, n))) == reserve)


@cache
def sort_digits(drawn: tuple[str, ...], reserve: bool) -> tuple[str, ...]:
    """Digits that may follow ``drawn``; the fourth decides whether the set is reserved."""
    left = tuple(d for d in DIGITS if d not in drawn)
    if len(drawn) < 3:
        return left
    return tuple(d for d in left if reserved("sort", *sorted((*drawn, d))) == reserve)


@cache
def lexicon_nouns(adjective: str, reserve: bool) -> tuple[str, ...]:
    """Nouns that may follow ``adjective``."""
    return tuple(n for n in NOUNS if reserved("word", adjective, n) == reserve)


def pick_one(draft: Manuscript, options: Sequence[str], then: str = "") -> str:
    """Write one option with ``then`` and return the option."""
    return options[draft.pick(options, then=then)]
