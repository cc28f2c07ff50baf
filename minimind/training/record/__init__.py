"""Every number of a run: file, console, trackers."""
