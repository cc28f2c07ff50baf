"""Generation on a terminal: a text that goes on, a conversation with commands and history, a file of prompts."""
