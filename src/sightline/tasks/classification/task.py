"""Classification as the engine trains it: data, model and loss put together."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.loader import BrokenImages
from sightline.data.order import Placement, derive
from sightline.models.base import to_pair
from sightline.tasks.base import Task
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Augment, Config
from sightline.tasks.classification.data import absent, open_split
from sightline.tasks.classification.loaders import (
    Batch,
    DeviceLoader,
    Loader,
    SyntheticLoader,
    WorkerLoader,
    keeps_whole,
)
from sightline.tasks.classification.loss import Criterion
from sightline.tasks.classification.mix import check_mixing, erase, mix, mixes
from sightline.tasks.classification.model import build, build_teacher
from sightline.tasks.classification.transforms import LONGEST
from sightline.tasks.evaluation import LabelBatch, LabelScorer

SYNTHETIC_CLASSES = 10
MOST_PRELOADED = 4 << 30  # bytes of images, for data.preload=auto


class Classification(Task[Batch, LabelBatch]):
    """A model, its training batches, their loss, and the images it is evaluated on.

    Args:
        config: of the run.
        placement: device and share of the work.
    """

    card: ModelCard

    def __init__(self, config: Config, placement: Placement) -> None:
        data, model, distill = config.data, config.model, config.distill
        self.augment, self.channels_last = config.augment, model.channels_last
        self.epochs = config.schedule.epochs
        splits = None
        classes: tuple[str, ...] = tuple(f"class {i}" for i in range(SYNTHETIC_CLASSES))
        if data.source != "synthetic":
            train = open_split(data, "train")
            splits, classes = (train, open_split(data, "val", train.classes)), train.classes
        torch.manual_seed(placement.seed)
        built, self.card = build(model, data, classes)
        self.model = built.to(placement.device)
        if model.channels_last:
            self.model.to(memory_format=torch.channels_last)
        teacher = build_teacher(distill, len(classes), self.card.input_size[0], placement.device)
        self.criterion = Criterion(config.loss, distill, teacher)
        broken = BrokenImages(data.on_error)
        self.broken = broken.messages
        self.notes = tuple(note for split in splits or () for note in split.notes)
        if splits is not None:
            self.notes += absent(splits[1])
        self.loader: Loader
        if splits is None:
            self.loader = SyntheticLoader(self.card, placement)
        elif preloads(config, self.card, sum(map(len, splits))):
            self.loader = DeviceLoader(config, self.card, splits, placement, broken)
        else:
            self.loader = WorkerLoader(config, self.card, splits, placement, broken)
        self.order = self.loader.order
        self.images = len(splits[1]) if splits else self.order.local * placement.ranks
        check_mixing(self.augment, self.order, placement)

    def __len__(self) -> int:
        """Images to evaluate."""
        return self.images

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        order = self.order
        mixing = mixes(self.augment, epoch)
        for number, (images, targets) in enumerate(self.loader.micro_batches(epoch, start), start * order.accumulate):
            images = shrink(images, self.augment, epoch / self.epochs)
            if mixing or self.augment.erase:
                rng = np.random.default_rng(derive(order.seed, epoch, number, 1))
            if mixing:
                images, targets = mix(images, targets, len(self.card.classes), self.augment, rng, order)
            if self.augment.erase:
                noise = derive(order.seed, epoch, number, 3, order.rank)
                images = erase(images, self.augment, rng, order, noise)
            yield Batch(self._layout(images), targets)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a micro-batch."""
        return self.criterion(model(batch.images), batch.targets, batch.images)

    def evaluation(self) -> Iterator[LabelBatch]:
        """This process's share of the images to evaluate, every one once over all processes."""
        for images, targets in self.loader.evaluation():
            yield self._layout(images), targets

    def scorer(self, device: torch.device) -> LabelScorer:
        return LabelScorer(self.card.classes, device)

    def close(self) -> None:
        """End the loader processes."""
        self.loader.close()

    def _layout(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images


def shrink(images: Tensor, augment: Augment, done: float) -> Tensor:
    """Training images (B, C, H, W) at the size of progressive resizing, once the share `done` of the epochs is over."""
    shares = augment.progressive
    share = shares[min(int(done * len(shares)), len(shares) - 1)] if shares else 1.0
    if share == 1:
        return images
    size = [max(1, round(share * side)) for side in images.shape[-2:]]
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def preloads(config: Config, card: ModelCard, images: int) -> bool:
    """Whether `images` images are kept in the memory of the device."""
    if config.data.preload != "auto":
        return config.data.preload
    height, width = to_pair(config.data.preload_size or card.input_size[1:])
    room = LONGEST**2 if keeps_whole(config) else 1  # upright and lying images together
    return images * card.input_size[0] * height * width * room <= MOST_PRELOADED
