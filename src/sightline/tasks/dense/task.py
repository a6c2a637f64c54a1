"""What segmentation and detection share as the engine trains them: order, loaders, images that could not be used."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from sightline.data.loader import close_loader
from sightline.data.order import Key, Placement
from sightline.tasks.dense.card import DenseCard
from sightline.tasks.dense.loading import Items, Keys, Loaded, make_loader
from sightline.tasks.dense.reporting import Broken

Reader = Callable[..., Any]  # an item by its index and a source of chance; goes to loader processes


class DenseTask:
    """Images to train on and to evaluate, read by loader processes; a subclass makes the model and the loss.

    Args:
        data: section of the configuration.
        placement: device and share of the work.
        train, val: splits, each with its length and `notes`.

    Attributes:
        model: in training mode on the device, not yet compiled or wrapped.
        card: what a file of its weights says of itself.
        order: of the training images.
        notes: what a user should know of the data, a line each.
    """

    model: nn.Module
    card: DenseCard

    def __init__(self, data: Any, placement: Placement, train: Any, val: Any) -> None:
        self.data, self.placement, self.val = data, placement, val
        self.order = placement.order(len(train))
        self.notes = (*train.notes, *val.notes)
        self._images = len(train)
        self._broken = Broken(data.on_error)

    def start(self, training: Reader, evaluation: Reader) -> None:
        """Make the loaders, which read by these."""
        self.train_keys, self.eval_keys = Keys(), Keys()
        skip, workers = self.data.on_error == "skip", self.data.workers
        self.train_loader = make_loader(Items(self._images, training, skip), self.train_keys, workers)
        self.eval_loader = make_loader(Items(len(self.val), evaluation, False), self.eval_keys, workers)

    @property
    def broken(self) -> dict[str, None]:
        """What was wrong with images that could not be used, every one once."""
        return self._broken.messages

    def __len__(self) -> int:
        """Images to evaluate."""
        return len(self.val)

    def training(self, epoch: int, start: int) -> Iterator[list[Any]]:
        """The items of the parts of an epoch's updates, from update `start` on."""
        self.train_keys.keys = partial(self.order.keys, epoch, start)
        for loaded in self.train_loader:
            yield self._broken.training(loaded)

    def evaluation(self) -> Iterator[list[Any]]:
        """The items of this process to evaluate, in batches; those that cannot be used are left out."""
        self.eval_keys.keys = self._eval_keys
        loaded: Loaded
        for loaded in self.eval_loader:
            self._broken.note(loaded)
            yield loaded.items

    def _eval_keys(self) -> Iterator[list[Key]]:
        for local in self.placement.evaluation(len(self.val)):
            yield [(index, 0) for index in local]

    def close(self) -> None:
        """End what was started to load images."""
        close_loader(self.train_loader)
        close_loader(self.eval_loader)
