"""Our chat template for other programs."""

from __future__ import annotations

JINJA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template as Hugging Face's ``chat_template``; its output equals bos + ``chat.as_text`` (tested)."""
