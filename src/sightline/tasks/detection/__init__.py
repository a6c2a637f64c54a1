"""Object detection and instance segmentation: boxes, classes and masks."""
