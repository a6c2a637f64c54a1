"""Shared by segmentation and detection: backbones, cards, loading."""
