"""Other projects' formats: Hugging Face Llama, GGUF, MiniMind .pth."""
