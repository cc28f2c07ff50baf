"""Documents -> a memory-mapped store -> packed rows -> step batches."""
