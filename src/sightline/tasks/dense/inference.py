"""Opening and evaluating a segmenter or detector: what both tasks share."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from sightline.data.loader import BrokenImages, chunks
from sightline.models.weights.reader import Weights
from sightline.tasks.base import SKIP, EvalOptions, Loaded, Scores
from sightline.tasks.create import restore
from sightline.tasks.dense.card import DenseCard, H
from sightline.tasks.dense.config import DenseData
from sightline.tasks.dense.data import Split
from sightline.tasks.dense.task import DenseScorer, eval_loader
from sightline.tasks.dense.transforms import InferenceTransform
from sightline.tasks.evaluation import run_scorer
from sightline.util.errors import InputError

Truth = TypeVar("Truth")
D = TypeVar("D", bound=DenseData)


def open_dense(weights: Weights, head: type[H], make: Callable[[DenseCard[H]], nn.Module]) -> Loaded:
    """The model in a file with a card."""
    card = DenseCard.read(weights.metadata, head)
    model = restore(card, weights.state, lambda: make(card))
    transform = InferenceTransform(card.head.short, card.head.long, card.mean, card.std)
    return Loaded(model, card, transform, card.classes, weights.path, card.task)


def eval_section(kind: type[D], data: str | None, section: object, options: EvalOptions) -> D:
    """The section `data` of an evaluation: that of the run or the defaults, with what the options change.

    Raises:
        InputError: no data are given.
    """
    if section is None and data is None:
        raise InputError("data: missing; give the images to evaluate on (only a run folder records its own)")
    section = section or kind()
    assert isinstance(section, kind), "a run has the configuration of its task"
    return replace(
        section, path=data or section.path, val_split=options.split or section.val_split, limit=options.limit,
        on_error=options.on_error, workers=options.workers,
    )  # fmt: skip


def evaluate_split(
    loaded: Loaded, split: Split[Any, Truth], scorer: DenseScorer[H, tuple[Tensor, Truth]], options: EvalOptions
) -> dict[str, Scores]:
    """The result of `sightline.evaluate`, under the one set of labels that these tasks have."""
    if split.classes != loaded.classes:
        raise InputError(f"data: the classes of {split.title} are not those of {loaded.path}; give the same classes")
    broken = BrokenImages(options.on_error, SKIP)
    loader = eval_loader(split, scorer.card, options.workers, broken)
    batches = loader.batches(partial(chunks, len(split), options.batch_size))
    with closing(loader):
        scores = run_scorer(scorer, loaded.model, batches, options, len(split), "images")
    return {"usual": replace(scores, data=split.title, broken=tuple(broken.messages), notes=split.notes)}
