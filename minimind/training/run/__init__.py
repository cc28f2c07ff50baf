"""One run from its options to its exit code."""
