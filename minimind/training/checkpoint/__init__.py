"""Checkpoints that are complete or ignored."""
