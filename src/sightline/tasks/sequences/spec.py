"""Sequences as an entry of `sightline.tasks.registry`: the task that the engine trains, and evaluation."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.loader import to_device
from sightline.data.order import Placement
from sightline.tasks.base import EvalOptions, Loaded, PredictOptions, Row, Scores, Task
from sightline.tasks.evaluation import LabelScorer, run_scorer
from sightline.tasks.sequences.card import SequenceCard
from sightline.tasks.sequences.config import Config, Data
from sightline.tasks.sequences.data import SPLITS, ProgressPrinter, cut, open_levels, open_splits
from sightline.tasks.sequences.model import build
from sightline.tasks.sequences.model import open_model as open
from sightline.tasks.sequences.tokens import DeviceTokens, TokenSet, quiet
from sightline.util.errors import InputError

__all__ = ["evaluate", "make", "open", "predictor"]

Batch = tuple[Tensor, Tensor]  # ids (B, N) or (B, 2, N), and labels (B,)


class Sequences(Task[Batch, Batch]):
    """A model, its training batches, their loss, and the sequences it is evaluated on.

    Args:
        config: of the run.
        placement: device and share of the work.
    """

    card: SequenceCard

    def __init__(self, config: Config, placement: Placement) -> None:
        data = config.data
        torch.manual_seed(placement.seed)
        built, self.card = build(config.model, data)
        note = ProgressPrinter() if placement.rank == 0 else quiet
        splits = open_splits(data, note, ("train", "val"))
        self.train, self.val = splits["train"], splits["val"]
        self.levels, self.epochs = open_levels(data, note, self.train), config.schedule.epochs
        self.kept: dict[int, DeviceTokens] = {}
        self.model = built.to(placement.device)
        self.placement, self.smoothing = placement, config.loss.smoothing
        self.order = placement.order(len(self.train), length=data.epoch_steps)
        self.notes = [
            f"{name}: {count:,} of {len(tokens.ends) - 1:,} sequences cut to {self.card.length:,} tokens"
            for name, tokens in splits.items()
            if (count := cut(data, tokens))
        ]
        self.broken = {}  # sequences that cannot be read end a run
        self.width = self.train.common_width(self.order.local, self.card.length)
        self.shapes = "fixed" if self.width else "lengths"

    def __len__(self) -> int:
        """Examples to evaluate."""
        return len(self.val)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        sequence = self.order.sequence(epoch).numpy()
        level = min(epoch * len(self.levels) // self.epochs, len(self.levels) - 1)
        for positions in self.order.positions(start):
            yield self._batch(self.levels[level], sequence[positions.numpy()], self.width)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a micro-batch."""
        ids, labels = batch
        return F.cross_entropy(model(ids).float(), labels, label_smoothing=self.smoothing)

    def evaluation(self) -> Iterator[Batch]:
        """This process's share of the examples to evaluate, every one once over all processes."""
        for share in self.placement.evaluation(len(self.val)):
            yield self._batch(self.val, np.arange(share.start, share.stop))

    def close(self) -> None:
        """Nothing was started that would have to end."""

    def scorer(self, device: torch.device) -> LabelScorer:
        return LabelScorer(self.card.classes, device)

    def _batch(self, tokens: TokenSet, indices: np.ndarray, width: int | None = None) -> Batch:
        device = self.placement.device
        if tokens.even and tokens.towers == 1 and tokens.even <= self.card.length:
            if id(tokens) not in self.kept:
                self.kept[id(tokens)] = DeviceTokens(tokens, device)
            return self.kept[id(tokens)].batch(to_device(torch.from_numpy(indices), device))
        ids, labels = tokens.batch(indices, self.card.length, width)
        return to_device(ids, device).int(), to_device(labels, device)


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
    raise InputError(f"{loaded.path}: a sequence model, which takes no images; use `sightline eval`")
