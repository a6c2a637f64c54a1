"""Sequences as an entry of `sightline.tasks.registry`."""

from dataclasses import replace
from typing import NoReturn

import numpy as np

from sightline.tasks.base import EvalOptions, Loaded, PredictOptions, Row, Scores
from sightline.tasks.evaluation import LabelScorer, run_scorer
from sightline.tasks.sequences.card import SequenceCard
from sightline.tasks.sequences.config import Data
from sightline.tasks.sequences.data import SPLITS, ProgressPrinter, cut, open_splits
from sightline.tasks.sequences.model import open_model as open
from sightline.tasks.sequences.task import Sequences
from sightline.util.errors import InputError

__all__ = ["evaluate", "make", "open", "predictor"]


make = Sequences  # the task of a run


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """Accuracy, calibration error and loss, with recall and precision per class.

    Args:
        data: folder of the files as published; by default that of the run, or generated as in the run.
        section: the section `data` of the run; by default the data as published.
    """
    card, split = loaded.card, options.split or "test"
    assert isinstance(card, SequenceCard)
    if split not in SPLITS:
        raise InputError(f"split: expected one of {', '.join(SPLITS)}; got {split!r}")
    chosen = section if isinstance(section, Data) else Data(name=card.task)
    if card.task != chosen.name:
        raise InputError(f"{loaded.path}: a model of {card.task}, and the data are of {chosen.name}")
    chosen = replace(chosen, length=card.length, path=chosen.path if data is None else data)
    tokens = open_splits(chosen, ProgressPrinter(), (split,))[split]
    shares = np.split(np.arange(len(tokens)), range(options.batch_size, len(tokens), options.batch_size))
    batches = ((ids.int(), labels) for ids, labels in (tokens.batch(share, card.length) for share in shares))
    scorer = LabelScorer(card.classes, options.device)
    scores = run_scorer(scorer, loaded.model, batches, options, len(tokens), split)
    details: Row = {"task": card.task, "split": split, "cut": cut(chosen, tokens)}
    return {"usual": replace(scores, data=f"{card.task}, {split}", details=details)}


def predictor(loaded: Loaded, options: PredictOptions) -> NoReturn:
    """Models of sequences take no images."""
    raise InputError(f"{loaded.path}: a model of sequences, not of images; use `sightline eval`")
