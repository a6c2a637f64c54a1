"""Training, evaluation and prediction, checkpoints, run folders and reports. Tasks come from the registry."""
