"""Linearization as an entry of `sightline.tasks.registry`. Its students are classifiers, and are used as such."""

from sightline.tasks.classification.spec import evaluate, examples, images, open, predictor, read_card
from sightline.tasks.linearize.search import check, search, speeds
from sightline.tasks.linearize.task import Linearization, labelled

__all__ = [
    "check",
    "evaluate",
    "examples",
    "images",
    "labelled",
    "make",
    "open",
    "predictor",
    "read_card",
    "search",
    "speeds",
]

make = Linearization  # the task of a run
