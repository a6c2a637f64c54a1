"""Sequences as the engine trains them: data, model and loss put together."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.order import Placement
from sightline.tasks.base import Note
from sightline.tasks.evaluation import LabelScorer, Task
from sightline.tasks.sequences.card import SequenceCard
from sightline.tasks.sequences.config import Config
from sightline.tasks.sequences.data import ProgressPrinter, cut, open_splits
from sightline.tasks.sequences.model import build
from sightline.tasks.sequences.tokens import TokenSet, quiet

Batch = tuple[Tensor, Tensor]  # ids (B, N) or (B, 2, N), and labels (B,)


class Sequences(Task[Batch, Batch]):
    """A model, its training batches, their loss, and the sequences it is evaluated on.

    Args:
        config: of the run.
        placement: device and share of the work.
    """

    card: SequenceCard

    def __init__(self, config: Config, placement: Placement, note: Note = quiet) -> None:
        data = config.data
        torch.manual_seed(placement.seed)
        built, self.card = build(config.model, data)
        splits = open_splits(data, ProgressPrinter() if placement.rank == 0 else quiet, ("train", "val"))
        self.train, self.val = splits["train"], splits["val"]
        self.model = built.to(placement.device)
        self.placement, self.smoothing = placement, config.loss.smoothing
        self.order = placement.order(len(self.train), length=data.epoch_steps)
        self.notes = [
            f"{name}: {count:,} of {len(tokens.ends) - 1:,} sequences cut to {self.card.length:,} tokens"
            for name, tokens in splits.items()
            if (count := cut(data, tokens))
        ]
        self.broken = {}  # sequences that cannot be read end a run

    def __len__(self) -> int:
        """Examples to evaluate."""
        return len(self.val)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        sequence = self.order.sequence(epoch).numpy()
        for positions in self.order.positions(start):
            yield self._batch(self.train, sequence[positions.numpy()])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a micro-batch."""
        ids, labels = batch
        return F.cross_entropy(model(ids).float(), labels, label_smoothing=self.smoothing)

    def evaluation(self) -> Iterator[Batch]:
        """This process's share of the examples to evaluate, every one once over all processes."""
        for share in self.placement.evaluation(len(self.val)):
            yield self._batch(self.val, np.arange(share.start, share.stop))

    def scorer(self, device: torch.device) -> LabelScorer:
        return LabelScorer(self.card.classes, device)

    def _batch(self, tokens: TokenSet, indices: np.ndarray) -> Batch:
        ids, labels = tokens.batch(indices, self.card.length)
        device = self.placement.device
        if device.type == "cuda":
            ids, labels = ids.pin_memory(), labels.pin_memory()
        return ids.to(device, non_blocking=True).int(), labels.to(device, non_blocking=True)
