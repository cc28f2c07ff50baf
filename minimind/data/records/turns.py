"""A list of messages -> chat turns: roles, content parts, tools and their calls, reasoning, and which answers are
trained.

Tools are written as a block ``# Tools`` of a system turn; a call as ``<tool_call>``, its JSON object and
``</tool_call>`` on lines of their own, whatever spelling it came in; reasoning before the answer as MiniMind writes
it, ``<think>⏎reasoning⏎</think>⏎⏎answer``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minimind.base.defaults import Reasoning
from minimind.data.records.calls import beside_calls, blocks, calls_of, spoken_calls
from minimind.data.records.unread import unread_of
from minimind.data.records.values import (
    BadRecord,
    clean,
    name_of,
    parsed,
    says_nothing,
    short,
    spelled,
    string,
    visible,
)
from minimind.text.chat import Role, Turn
from minimind.text.messages import THOUGHT_END, THOUGHT_START

ROLE_NAMES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "tool_response"), "tool"),
}
_CALLERS = ("function_call", "tool_call")  # LLaMA-Factory's and ms-swift's: the turn is a call
MEDIA = ("images", "videos", "audios", "image", "video", "audio")
REASONING = ("reasoning_content", "reasoning", "thinking")
TOOLS = ("tools", "functions")
_WEIGHTS = ("weight", "train", "training", "trainable", "loss", "loss_mask")  # of a turn: whether it is trained
_SENDERS = frozenset({"role", "from"})
_EXCHANGES = (("human", "assistant"), ("input", "output"))
_TAUGHT = "output_with_loss"  # XTuner's: false for an answer that is context
_PLAIN = frozenset({"role", "from", "content", "value"})
_TURN = frozenset({*_PLAIN, *TOOLS, *_WEIGHTS})  # what is read of a turn
_ANSWER = frozenset({*_TURN, *REASONING, "tool_calls", "function_call"})
_UNTRAINED = (None, False, 0, "", "0", "false", "False")
_YES_OR_NO = {"1": True, "true": True, "0": False, "false": False}
_THOUGHT = re.compile(rf"\s*{THOUGHT_START}(.*?){THOUGHT_END}\s*", re.DOTALL)
Message = dict[str, object]  # of an answer, as transformers takes it
_NO_TOOLS: tuple[object, ...] = (None, "", "[]", [], "null", {})


@dataclass
class Notes:
    """What became of a record's fields beside its turns."""

    reasoning: Reasoning = "train"
    unread: set[str] = field(default_factory=set)
    dropped: int = 0  # answers whose reasoning was left out


def turn_list(turns: object, notes: Notes, mask: object = None) -> list[Turn]:
    """The turns of a list of messages. ``mask``: for each whether it is trained, beside what the messages say."""
    if isinstance(turns, str) and turns.lstrip()[:1] == "[":
        turns = parsed(turns, "the list of turns")  # a cell of a CSV
    if not isinstance(turns, list):
        raise BadRecord(f"the turns are {name_of(turns)}, not a list")
    if not turns:
        raise BadRecord("no turns (an empty list)")
    trained = _trained_by(parsed(mask, '"loss_mask"'), len(turns))
    if all(isinstance(turn, dict) and not _SENDERS & turn.keys() for turn in turns):
        return _exchanges(turns, trained, notes)
    return [made for n, turn in enumerate(turns, 1) for made in _turn(turn, n, trained[n - 1], notes)]


def _exchanges(turns: Sequence[Mapping[str, object]], trained: Sequence[bool], notes: Notes) -> list[Turn]:
    """Items that hold a question with its answer each: MOSS's and Firefly's, XTuner's, whose first may have a system
    text."""
    made: list[Turn] = []
    for number, (item, wanted) in enumerate(zip(turns, trained, strict=True), 1):
        where = f"item {number}"
        names = next((names for names in _EXCHANGES if names[1] in item), None)
        if names is None:
            raise BadRecord(f"turn {number}: unknown role null; known: {', '.join(ROLE_NAMES)}")
        refuse_media(item)
        question, answer = names
        notes.unread.update(f"{name} of a turn" for name in unread_of(item, (*names, "system", _TAUGHT)))
        made += system_turns(item.get("system"), None, f"{where} (system)")
        if not says_nothing(item.get(question)):
            made.append(Turn("user", visible(item[question], f"{where} ({question})")))
        text = visible(item[answer], f"{where} ({answer})")
        trains = item.get(_TAUGHT) is None or _yes_or_no(item[_TAUGHT], f"{where}: {_TAUGHT}")
        said = visible(with_reasoning(text, None, notes), f"{where} ({answer})")
        made.append(Turn("assistant", said, wanted and trains))
    return made


def with_reasoning(answer: str, reasoning: object, notes: Notes) -> str:
    """The answer after its reasoning, or without any if reasoning is dropped."""
    thought = reasoning.strip("\n") if isinstance(reasoning, str) and not reasoning.isspace() else ""
    inside = _THOUGHT.match(answer)
    if notes.reasoning == "drop":
        notes.dropped += bool(thought or (inside and inside[1].strip()))
        return answer[inside.end() :] if inside else answer
    if not thought:
        return answer
    if inside:
        raise BadRecord("reasoning in a field of its own and in the answer; which one is meant is unknown")
    return f"{THOUGHT_START}\n{thought}\n{THOUGHT_END}\n\n" + answer.lstrip("\n")


def reasoned_turn(answer: str, reasoning: object, where: str, notes: Notes) -> Turn:
    """An answer that has its reasoning, if any, in a field beside it."""
    text = visible(with_reasoning(answer, reasoning, notes), where)
    return Turn("assistant", text, message=_message(answer, reasoning, [], notes) if reasoning else None)


def system_turns(text: object, tools: object = None, where: str = '"system"') -> list[Turn]:
    """A system turn of a text and tools, if they say anything. ``text`` None: there is no message, only tools."""
    parts = [] if text in (None, "") else [string(text, where)]
    if tools in _NO_TOOLS:
        return [Turn("system", clean(parts[0], where))] if parts and parts[0].strip() else []
    parts.append("# Tools\n" + (tools if isinstance(tools, str) else spelled(tools, '"tools"')))
    joined = clean("\n\n".join(part for part in parts if part.strip()), where)
    return [Turn("system", joined, message={} if text is None else {"content": text}, tools=tools)]


def refuse_media(record: Mapping[str, object], names: Sequence[str] = MEDIA) -> None:
    for name in names:
        if name in record and not says_nothing(record[name]):
            raise BadRecord(f'"{name}": only text can be learned', "sft")


def _turn(turn: object, number: int, trained: bool, notes: Notes) -> list[Turn]:
    """One turn; none for an empty system turn, which says nothing; a system turn before one that brings tools."""
    if not isinstance(turn, dict):
        raise BadRecord(f"turn {number} is {name_of(turn)}, not an object")
    sender = turn.get("role") or turn.get("from")  # a Parquet row has every field of its schema, some of them null
    if turn.get("role") and turn.get("from") and _role(turn["from"]) != _role(sender):
        raise BadRecord(f"turn {number} is from {short(sender)} and from {short(turn['from'])}")
    if not isinstance(sender, str) or sender.strip().lower() not in ROLE_NAMES:
        raise BadRecord(f"turn {number}: unknown role {short(sender)}; known: {', '.join(ROLE_NAMES)}")
    sender = sender.strip().lower()
    role, where = ROLE_NAMES[sender], f"turn {number} ({ROLE_NAMES[sender]})"
    content = turn["content"] if turn.get("content") is not None else turn.get("value")
    tools = None
    if not turn.keys() <= _PLAIN or len(turn) > 2:  # most turns have nothing else
        refuse_media(turn)
        notes.unread.update(f"{name} of a turn" for name in _unread_of_turn(turn, role))
        tools = only_tools(turn, where)
    if role == "system":
        return system_turns(_content(content, where) if tools is None or content is not None else None, tools, where)
    text, message = (
        _answer(turn, sender, content, where, notes) if role == "assistant" else (_content(content, where), None)
    )
    if not text.strip():
        raise BadRecord(f"{where} is empty" if role != "assistant" else f"turn {number}: the answer is empty")
    trains = role != "assistant" or (_wanted(turn, where) and trained)
    made = Turn(role, clean(text, where), trains, message)
    return [made] if tools is None else [*system_turns(None, tools), made]


def only_tools(holder: Mapping[str, object], where: str) -> object:
    """The tools that a record or turn brings; None for none. BadRecord if it has them under two names."""
    found = [holder[name] for name in TOOLS if name in holder and holder[name] not in _NO_TOOLS]
    if len(found) > 1:
        raise BadRecord(f"{where} has {' and '.join(TOOLS)}; which are meant is unknown")
    return found[0] if found else None


def _unread_of_turn(turn: Mapping[str, object], role: Role) -> list[str]:
    """Names of what it says and nobody reads: a second text, a question that is to be trained among them."""
    found = unread_of(turn, _ANSWER if role == "assistant" else _TURN)
    if turn.get("content") is not None and turn.get("value") not in (None, turn["content"]):
        found.append("value")
    if role != "assistant":
        return found + [name for name in _WEIGHTS if turn.get(name) not in _UNTRAINED]
    return found + beside_calls(turn)


def _role(sender: object) -> Role | None:
    return ROLE_NAMES.get(sender.strip().lower()) if isinstance(sender, str) else None


def _thought(turn: Mapping[str, object], notes: Notes) -> str | None:
    """The reasoning beside an answer; whatever says something else under its other names isn't read."""
    said = {name: turn[name] for name in REASONING if not says_nothing(turn.get(name))}
    found = next((text for text in said.values() if isinstance(text, str)), None)
    notes.unread.update(f"{name} of a turn" for name, value in said.items() if value != found)
    return found


def _answer(
    turn: Mapping[str, object], sender: str, content: object, where: str, notes: Notes
) -> tuple[str, Message | None]:
    """All that an answer says as one text, and as a message where it is more than a text."""
    if turn.keys() <= _PLAIN and sender not in _CALLERS:
        return with_reasoning(_content(content, where), None, notes), None
    calls = calls_of(turn, where)
    thought = _thought(turn, notes)
    said = "" if calls and content in (None, "") else _content(content, where)
    if calls:
        text = "\n".join([*([said] if said else []), blocks(calls, where)])
    elif not said.strip():
        return "", None
    else:
        text, calls = spoken_calls(said, where) if sender in _CALLERS else (said, [])
    bare = "" if sender in _CALLERS and calls else said
    return with_reasoning(text, thought, notes), _message(bare, thought, calls, notes)


def _message(said: str, thought: object, calls: list[dict[str, object]], notes: Notes) -> Message:
    """The answer as transformers takes it, with reasoning and calls apart."""
    if notes.reasoning == "drop":
        inside = _THOUGHT.match(said)
        said, thought = said[inside.end() :] if inside else said, None
    message: Message = {"content": said}
    if isinstance(thought, str) and thought.strip():
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return message


def _content(content: object, where: str) -> str:
    """Text, or OpenAI's list of content parts: the text of all parts; any other type of part is refused by name."""
    if not isinstance(content, list):
        return string(content, where)
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and (part.get("type") or "text") == "text":
            texts.append(string(part.get("text", part.get("value")), f"{where}: the text part"))
        else:
            kind = short(part.get("type")) if isinstance(part, dict) else name_of(part)
            raise BadRecord(f"{where}: a content part of type {kind}; only text can be learned")
    return "".join(texts)


def _trained_by(mask: object, turns: int) -> list[bool]:
    if mask is None:
        return [True] * turns
    if not isinstance(mask, list) or len(mask) != turns:
        found = f"{len(mask)} entries" if isinstance(mask, list) else name_of(mask)
        raise BadRecord(f'"loss_mask" is {found} for {turns} turns')
    return [_yes_or_no(value, '"loss_mask"') for value in mask]


def _wanted(turn: Mapping[str, object], where: str) -> bool:
    if turn.keys() <= _PLAIN:
        return True
    return all(_yes_or_no(turn[name], f"{where}: {name}") for name in _WEIGHTS if turn.get(name) not in (None, ""))


def _yes_or_no(value: object, where: str) -> bool:
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in _YES_OR_NO:
        return _YES_OR_NO[value.strip().lower()]
    found = str(value)[:40] if isinstance(value, (int, float)) else short(value)
    raise BadRecord(f"{where} is {found}; only 0 and 1 can be followed")
