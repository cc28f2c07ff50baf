"""From step batches to a trained model: engine, step, loop, metrics, checkpoints."""
