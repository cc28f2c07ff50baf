"""Parameters of OpenAI's interface, and of servers like it, that are taken without being honoured.

Contract. What stands here changes nothing: `NEVER` whatever its value is, `UNLESS` at the values given. Any other value
of those would change the answer, and is refused by its name. Null means not given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

NEVER = frozenset(
    {
        "cache_prompt",
        "metadata",
        "prediction",  # only makes an answer sooner
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
UNLESS: Mapping[str, Sequence[Any]] = {  # but where a request has a field for it, which is then read
    "add_generation_prompt": [True],
    "audio": [],
    "best_of": [1],
    "chat_template_kwargs": [{}],
    "continue_final_message": [False],
    "frequency_penalty": [0],
    "function_call": ["none", "auto"],
    "functions": [[]],
    "ignore_eos": [False],
    "length_penalty": [1],
    "logit_bias": [{}],
    "min_p": [0],
    "min_tokens": [0],
    "modalities": [["text"]],
    "moderation": [],
    "no_repeat_ngram_size": [0],
    "parallel_tool_calls": [True, False],
    "presence_penalty": [0],
    "reasoning_effort": ["none"],
    "response_format": [{"type": "text"}],
    "skip_special_tokens": [True],
    "spaces_between_special_tokens": [True],
    "stop_token_ids": [[]],
    "suffix": [""],
    "tool_choice": ["none", "auto"],
    "tools": [[]],
    "typical_p": [1],
    "use_beam_search": [False],
    "verbosity": ["medium"],
    "web_search_options": [],
}
WHY: Mapping[str, str] = {
    "tools": "only chats have tools",
    "functions": "say tools instead",
    "reasoning_effort": "chat_template_kwargs are told to the model's chat template",
}
# Of a message: what a client sends back of an answer that it got, and names that the template has no place for.
MESSAGE_NEVER = frozenset({"name", "refusal", "tool_call_id"})
MESSAGE_UNLESS: Mapping[str, Sequence[Any]] = {"annotations": [[]], "audio": [], "function_call": []}


def without_neutral(values: Any, never: Collection[str], unless: Mapping[str, Sequence[Any]]) -> Any:
    """``values`` of an object without nulls and without what changes nothing. ValueError for what would."""
    if not isinstance(values, dict):
        return values
    given = {name: value for name, value in values.items() if value is not None and name not in never}
    for name in unless.keys() & given.keys():
        if given[name] not in unless[name]:
            raise ValueError(f"{name} is not supported by this server: {WHY.get(name, 'leave it out')}")
        del given[name]
    return given
