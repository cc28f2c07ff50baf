"""What exists for CPUs only: attention by blocks, projections that keep less, memory that is kept between steps."""
