"""MiniMind on DeepSpeed: raw Chinese and English text in, a chatting GPT out."""

__version__ = "0.1.0"
