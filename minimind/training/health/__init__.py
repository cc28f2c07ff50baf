"""Is this run well, and what is done when it is not."""
