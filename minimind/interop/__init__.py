"""Other projects' formats: Hugging Face, GGUF, MiniMind .pth."""
