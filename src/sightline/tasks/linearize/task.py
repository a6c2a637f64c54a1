"""Linearization as the engine trains it: images without labels, a student and its teacher."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.labels import match
from sightline.data.loader import BrokenImages
from sightline.data.order import Placement, derive
from sightline.data.readers.images import ImagesReader
from sightline.data.splits import Split
from sightline.models.attention_error import attention_modules
from sightline.tasks.base import Task
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.data import data_section, open_split
from sightline.tasks.classification.loaders import DeviceLoader, Kept, Loader, WorkerLoader
from sightline.tasks.classification.mix import check_mixing, mix, mixes
from sightline.tasks.evaluation import LabelBatch
from sightline.tasks.linearize.config import Config, Data
from sightline.tasks.linearize.distiller import Distiller, Teacher
from sightline.tasks.linearize.model import build, to_device
from sightline.tasks.linearize.scorer import AgreementScorer
from sightline.util.errors import FileError, InputError


class Linearization(Task[Tensor, LabelBatch]):
    """A student next to its teacher, batches of images, and those to compare them on.

    Args:
        config: of the run.
        placement: device and share of the work.
    """

    card: ModelCard

    def __init__(self, config: Config, placement: Placement) -> None:
        self.augment = config.augment
        student, teacher, replaced, self.card = build(config)
        splits, self.labelled = open_splits(config.data, self.card.classes)
        self.student = to_device(student, placement.device)
        shared = Teacher(to_device(teacher, placement.device))
        self.model: nn.Module = Distiller(self.student, shared, config.linearize, replaced)
        self.inherited = student.inherited
        broken = BrokenImages(config.data.on_error)
        self.broken = broken.messages
        loader = SharedLoader if config.data.preload else WorkerLoader
        self.loader: Loader = loader(config, self.card, splits, placement, broken)  # type: ignore[arg-type]
        self.order, self.images = self.loader.order, len(splits[1])
        labels = "labeled" if self.labelled else "held out"
        self.notes = (str(student.inherited), f"evaluated on {self.images:,} {labels} images", *splits[1].notes)
        check_mixing(self.augment, self.order, placement)

    @property
    def repeated(self) -> list[nn.Module]:
        assert isinstance(self.model, Distiller)
        return self.model.repeated

    def __len__(self) -> int:
        """Images to evaluate."""
        return self.images

    def batches(self, epoch: int, start: int) -> Iterator[Tensor]:
        """The micro-batches of an epoch from update `start` on, normalized."""
        order = self.order
        mixing = mixes(self.augment, epoch)
        for number, (images, targets) in enumerate(self.loader.micro_batches(epoch, start), start * order.accumulate):
            if mixing:
                rng = np.random.default_rng(derive(order.seed, epoch, number, 1))
                images, _ = mix(images, targets, 1, self.augment, rng, order)
            yield images

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """The loss of a micro-batch."""
        return model(batch)

    def evaluation(self) -> Iterator[LabelBatch]:
        """This process's share of the images to evaluate, every one once over all processes."""
        yield from self.loader.evaluation()

    def scorer(self, device: torch.device) -> AgreementScorer:
        return AgreementScorer(self.card.classes, self.labelled, len(attention_modules(self.student)), device)

    def close(self) -> None:
        """End the loader processes."""
        self.loader.close()


class SharedLoader(DeviceLoader):
    """Images on the device, which the stages of a linearization share."""

    kept: ClassVar[dict[tuple[object, ...], Kept]] = {}

    def preload(
        self, split: Split, card: ModelCard, whole: bool, workers: int, placement: Placement, broken: BrokenImages
    ) -> Kept:
        key = (split.title, len(split), card.input_size, card.crop_pct, card.interpolation, whole, placement.device)
        if key not in self.kept:
            for old in [old for old in self.kept if old[0] == split.title]:
                del self.kept[old]
            self.kept[key] = super().preload(split, card, whole, workers, placement, broken)
        return self.kept[key]


def labelled(path: str) -> dict[str, str | None]:
    """Where labeled images are, as keys of the section `data`; a folder of classes is a split itself."""
    found = data_section(path, None)
    return {"path": found.path, "val_split": found.val_split}


def open_splits(data: Data, classes: tuple[str, ...]) -> tuple[tuple[Split, Split], bool]:
    """The images to train on and to evaluate, and whether the latter have labels.

    Raises:
        InputError, FileError: there are no images, or too few; or labels that the model does not have.
    """
    images = Split(ImagesReader(data.images), ", ".join(data.images))
    if data.limit is not None:
        images = images.subset(range(min(data.limit, len(images))))
    if data.path is not None:
        if not classes:
            raise InputError("data.path: the teacher has no classifier, so that labels cannot be used; leave it out")
        where = labelled(data.path) if data.val_split is None else {"path": data.path, "val_split": data.val_split}
        val = open_split(replace(data, limit=None, path=where["path"], val_split=where["val_split"]), "val")
        outputs = match(val.classes, classes)
        val.targets = [outputs[target] for target in val.targets]
        return (images, val), True
    count = min(data.hold_out, len(images) // 10)
    if count < 1:
        raise FileError(f"{images.title}: {len(images)} images are too few to hold some out; give ten or more")
    step = len(images) // count
    held = set(range(0, step * count, step))
    rest = [i for i in range(len(images)) if i not in held]
    val = images.subset(sorted(held))
    val.title = f"{val.title} (held out)"
    return (images.subset(rest), val), False
