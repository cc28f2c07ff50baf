"""What a run is told: the YAML, the model's shape, health and recovery, memory, the DeepSpeed JSON. Without torch."""
