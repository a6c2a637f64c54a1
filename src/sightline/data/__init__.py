"""Images and labels: what tasks share."""
