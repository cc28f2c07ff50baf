"""What exists for CPUs only: attention by blocks, and projections that keep less."""
