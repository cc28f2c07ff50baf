"""From files to step batches: sources, documents, store, rows, batches."""
