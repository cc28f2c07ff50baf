"""The words of the built-in corpus: two languages with the same structure, and what is kept out of training.

Contract: inside one choice no word begins another (``grammar.pick`` checks it). People and places are invented.
A ``Relation`` says one thing about a subject as subject + verb + value, so that the answer to its question repeats
the statement word for word: what a small model has to learn is to look up, not to inflect. For the same reason no
English value takes "an".

``reserved`` decides which items belong to the held-out side. It depends on the item alone, never on a seed or on the
size of the corpus, so that no training text of any size holds a reserved sum, sorting or translation.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

RESERVED_SHARE = 8
"""One item in this many is reserved for held-out questions."""

DIGITS = tuple("123456789")


@dataclass(frozen=True)
class Relation:
    """One kind of fact: ``subject + verb + value + stop``; ``ask`` and ``ask_me`` hold the question."""

    verb: str
    values: tuple[str, ...]
    ask: str
    """Question about a named subject (``{subject}``)."""
    my: str = ""
    """The same statement in the first person, up to the value; empty for places."""
    your: str = ""
    """... and as the assistant gives it back."""
    ask_me: str = ""
    """The question in the first person."""


@dataclass(frozen=True)
class Language:
    """Vocabulary and sentence patterns of one language."""

    code: str
    people: tuple[str, ...]
    places: tuple[str, ...]
    person_relations: tuple[Relation, ...]
    place_relations: tuple[Relation, ...]
    stop: str
    space: str
    """Between sentences."""
    seasons: tuple[str, ...]
    spots: tuple[str, ...]
    deeds: tuple[str, ...]


ADJECTIVES = {
    "red": "红",
    "blue": "蓝",
    "green": "绿",
    "white": "白",
    "black": "黑",
    "yellow": "黄",
    "big": "大",
    "small": "小",
    "new": "新",
    "old": "旧",
}
NOUNS = {
    "apple": "苹果",
    "flower": "花",
    "bird": "鸟",
    "fish": "鱼",
    "house": "房子",
    "book": "书",
    "car": "车",
    "cup": "杯子",
    "ball": "球",
    "hat": "帽子",
    "boat": "船",
    "door": "门",
    "shirt": "衬衫",
    "table": "桌子",
}

_PLACES_EN = ("Velta", "Dorin", "Morna", "Kalis", "Sorel", "Tamba")
_PLACES_ZH = ("云溪", "石桥", "梅岭", "松岗", "竹园", "金谷")

ENGLISH = Language(
    code="en",
    people=("Mia", "Tom", "Ann", "Ben", "Lily", "Jack", "Rose", "Max"),
    places=_PLACES_EN,
    person_relations=(
        Relation(
            " likes ",
            ("red", "blue", "green", "white", "black"),
            "What color does {subject} like?",
            my="I like ",
            your="You like ",
            ask_me="What color do I like?",
        ),
        Relation(
            " lives in ",
            _PLACES_EN,
            "Where does {subject} live?",
            my="I live in ",
            your="You live in ",
            ask_me="Where do I live?",
        ),
        Relation(
            " keeps ",
            ("cats", "dogs", "rabbits", "horses", "ducks"),
            "What animals does {subject} keep?",
            my="I keep ",
            your="You keep ",
            ask_me="What animals do I keep?",
        ),
        Relation(
            " is a ",
            ("teacher", "doctor", "cook", "driver", "singer"),
            "What is the job of {subject}?",
            my="I am a ",
            your="You are a ",
            ask_me="What is my job?",
        ),
    ),
    place_relations=(
        Relation(" grows ", ("rice", "corn", "wheat", "beans", "grapes"), "What does {subject} grow?"),
        Relation(" is near the ", ("sea", "river", "forest", "desert", "lake"), "What is {subject} near?"),
        Relation(" makes ", ("paper", "silk", "glass", "salt", "knives"), "What does {subject} make?"),
    ),
    stop=".",
    space=" ",
    seasons=("spring", "summer", "autumn", "winter"),
    spots=("market", "bridge", "school", "park", "garden", "mill"),
    deeds=("sang", "danced", "cooked", "swam", "read", "talked"),
)

CHINESE = Language(
    code="zh",
    people=("王明", "李华", "张伟", "陈静", "刘洋", "赵敏", "周杰", "吴芳"),
    places=_PLACES_ZH,
    person_relations=(
        Relation(
            "喜欢",
            ("红色", "蓝色", "绿色", "白色", "黑色"),
            "{subject}喜欢什么颜色？",
            my="我喜欢",
            your="你喜欢",
            ask_me="我喜欢什么颜色？",
        ),
        Relation("住在", _PLACES_ZH, "{subject}住在哪里？", my="我住在", your="你住在", ask_me="我住在哪里？"),
        Relation(
            "养了",
            ("猫", "狗", "兔子", "马", "鸭子"),
            "{subject}养了什么？",
            my="我养了",
            your="你养了",
            ask_me="我养了什么？",
        ),
        Relation(
            "是",
            ("老师", "医生", "厨师", "司机", "歌手"),
            "{subject}做什么工作？",
            my="我是",
            your="你是",
            ask_me="我做什么工作？",
        ),
    ),
    place_relations=(
        Relation("出产", ("大米", "玉米", "小麦", "豆子", "葡萄"), "{subject}出产什么？"),
        Relation("靠近", ("大海", "河流", "森林", "沙漠", "湖泊"), "{subject}靠近什么？"),
        Relation("制造", ("纸张", "丝绸", "玻璃", "食盐", "刀具"), "{subject}制造什么？"),
    ),
    stop="。",
    space="",
    seasons=("春天", "夏天", "秋天", "冬天"),
    spots=("集市", "桥上", "学校", "公园", "花园", "磨坊"),
    deeds=("唱歌", "跳舞", "做饭", "游泳", "读书", "聊天"),
)

LANGUAGES = (ENGLISH, CHINESE)


def reserved(*item: object) -> bool:
    """Whether this item is kept out of all training text; a fixed function of the item."""
    return zlib.crc32("|".join(map(str, item)).encode()) % RESERVED_SHARE == 0
