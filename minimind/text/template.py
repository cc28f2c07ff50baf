"""Our chat template for other programs: plain, and as an export carries it for transformers, with marks around what an
assistant says itself and for messages as people have them.

Contract: what both spell is what conversations are trained as (chat.py, data/records/turns.py). `MARKED` takes contents
as text or as a list of text parts, tools as a block of the system turn, calls and reasoning written into the answer.
Between ``{% generation %}`` and ``{% endgeneration %}`` stands exactly what is trainable, so that transformers'
``return_assistant_tokens_mask`` is our flags. A part that is no text raises.

Weakness: arguments of a call that come as a string are written as they are; training writes their JSON anew.
Programs with a smaller Jinja than transformers' (llama.cpp in its older versions) get `JINJA`.
"""

from __future__ import annotations

JINJA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template as Hugging Face's ``chat_template``; its output equals bos + ``chat.as_text`` (tested)."""

_SAID = (
    "{% macro said(content) %}"
    "{% if content is string %}{{ content }}"
    "{% elif content %}{% for part in content %}"
    "{% if part is string %}{{ part }}"
    "{% elif part['type'] | default('text') == 'text' %}{{ part['text'] }}"
    "{% else %}{{ raise_exception('a content part of type ' + part['type'] + '; only text can be read') }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% endmacro %}"
)
_CALL = (
    "{% macro written(call) %}"
    "{% set function = call['function'] | default(call) %}{% set given = function['arguments'] | default({}) %}"
    "{{ '<tool_call>\\n{\"name\": ' ~ (function['name'] | tojson) ~ ', \"arguments\": ' }}"
    "{{ (given if given is string else given | tojson) ~ '}\\n</tool_call>' }}"
    "{% endmacro %}"
)
_TOOLS = "{% set block = ('# Tools\\n' ~ (tools | tojson)) if tools else '' %}"
_FIRST = (
    "{% if block and (not messages or messages[0]['role'] != 'system') %}"
    "{{ '<|im_start|>system\\n' ~ block ~ '<|im_end|>\\n' }}{% endif %}"
)
_TEXT = (
    "{% set text = said(message['content']) %}"
    "{% if block and loop.first and message['role'] == 'system' %}"
    "{% set text = text ~ '\\n\\n' ~ block if text.strip() else block %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% set ns.calls = ns.calls ~ ('\\n' if ns.calls or text else '') ~ written(call) %}{% endfor %}"
    "{% set text = text ~ ns.calls %}{% set ns.calls = '' %}"
    "{% set thought = (message['reasoning_content'] or '').strip('\\n') %}"
    "{% if thought.strip() %}"
    "{% set text = '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' ~ text.lstrip('\\n') %}{% endif %}"
)
_TURN = (
    "{{ '<|im_start|>' ~ message['role'] ~ '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ text ~ '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ text ~ '<|im_end|>' }}{% endif %}{{ '\\n' }}"
)
MARKED = (
    f"{_SAID}{_CALL}{_TOOLS}{{% set ns = namespace(calls='') %}}{{{{ bos_token }}}}{_FIRST}"
    f"{{% for message in messages %}}{_TEXT}{_TURN}{{% endfor %}}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""For plain turns its output is `JINJA`'s."""
