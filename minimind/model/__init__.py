"""The transformer and its parts, for CPUs and GPUs."""
