"""The engine: training loop, evaluation, checkpoints, run folder. It knows tasks, not models."""
