"""Ranks, signals and the host as processes."""
