"""Attention mechanisms as modules, and the other building blocks of models."""

from sightline.layers.attention import Attention
from sightline.layers.core import Core, Place
from sightline.layers.pattern import format_pattern, parse_pattern
from sightline.layers.spec import MECHANISMS, Mechanism, Spec

__all__ = ["MECHANISMS", "Attention", "Core", "Mechanism", "Place", "Spec", "format_pattern", "parse_pattern"]
