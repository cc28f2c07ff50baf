"""Other programs that a run tells its numbers to: wandb, TensorBoard, SwanLab; each behind a package of its own."""
