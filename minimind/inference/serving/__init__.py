"""`minimind serve` over HTTP: the guarded door, OpenAI's interface and the chat page."""
