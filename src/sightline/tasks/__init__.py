"""What models are trained for: each task the same few files (data, model, loss, metrics)."""
