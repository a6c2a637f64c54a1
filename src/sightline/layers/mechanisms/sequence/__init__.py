"""Mechanisms on a sequence of tokens: a grid of one row, and weights that have one dimension too."""
