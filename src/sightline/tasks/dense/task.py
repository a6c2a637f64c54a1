"""Training tasks of segmentation and detection: order, loaders, images that could not be used."""

from collections.abc import Iterator
from functools import partial
from typing import Generic, TypeVar

from torch import nn

from sightline.data.loader import BrokenImages, ItemLoader, Items, Read
from sightline.data.order import Placement
from sightline.tasks.dense.config import DenseData
from sightline.tasks.dense.loading import Split

TrainItem = TypeVar("TrainItem")
EvalItem = TypeVar("EvalItem")


class DenseTask(Generic[TrainItem, EvalItem]):
    """Images to train on and to evaluate, read by loader processes; a subclass adds the card, the model and the loss.

    Args:
        data: section of the configuration.
        placement: device and share of the work.
        train, val: splits.

    Attributes:
        model: in training mode on the device, neither compiled nor wrapped.
        order: of the training images.
        notes: what a user should know about the data, one line each.
    """

    model: nn.Module

    def __init__(self, data: DenseData, placement: Placement, train: Split, val: Split) -> None:
        self.placement, self.images = placement, len(val)
        self.order = placement.order(len(train))
        self.notes = (*train.notes, *val.notes)
        self._data, self._train_images, self._broken = data, len(train), BrokenImages(data.on_error)

    def start(self, training: Read[TrainItem], evaluation: Read[EvalItem]) -> None:
        """Make the loaders."""
        replace, workers = self._data.on_error == "skip", self._data.workers
        self.train_loader = ItemLoader(Items(self._train_images, training, replace), workers, self._broken.add, list)
        self.eval_loader = ItemLoader(Items(self.images, evaluation, False), workers, self._broken.add, list)

    @property
    def broken(self) -> dict[str, None]:
        """Messages about images that could not be used, each once."""
        return self._broken.messages

    def __len__(self) -> int:
        """Images to evaluate."""
        return self.images

    def training(self, epoch: int, start: int) -> Iterator[list[TrainItem]]:
        """The items of an epoch's micro-batches, from update `start` on."""
        return self.train_loader.batches(partial(self.order.keys, epoch, start))

    def evaluation(self) -> Iterator[list[EvalItem]]:
        """This process's items to evaluate, in batches; those that cannot be used are left out."""
        return self.eval_loader.batches(partial(self.placement.evaluation_keys, self.images))

    def close(self) -> None:
        """End the loader processes."""
        self.train_loader.close()
        self.eval_loader.close()
