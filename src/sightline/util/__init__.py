"""Utilities for every layer: files, names, devices, provenance."""
