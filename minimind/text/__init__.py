"""Tokenizer and chat template: text to token ids and back."""
