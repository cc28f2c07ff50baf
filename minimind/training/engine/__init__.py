"""The optimizer step on DeepSpeed; the only folder that imports it."""
