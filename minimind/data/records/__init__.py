"""Records -> turns -> documents of token ids, and what is done about rejects."""
