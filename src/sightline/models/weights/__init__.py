"""Weights of others and our own: read as data, identified, renamed and fitted to a model."""
