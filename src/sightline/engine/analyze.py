"""The models, images and labels of a study, from checkpoints, files and datasets; opened on first use.

session = Session(ModelChoice(["runs/quick"]), torch.device("cpu"))
study_locality(session.subjects(limit=32))
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import overload

import torch
from PIL import Image
from torch import Tensor

from sightline.analysis.maps import Patch, Query
from sightline.analysis.studies import Subject
from sightline.analysis.studies.masking import Labelled
from sightline.analysis.studies.paper import Material
from sightline.data.images import find_images, load_image
from sightline.data.labels import match
from sightline.data.splits import Split
from sightline.engine.evaluate import run_data
from sightline.engine.study_models import ModelChoice, StudyModel, make_models, open_checkpoints
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import make_transform, one_pass, shown
from sightline.tasks.registry import LABELLED
from sightline.util.errors import FileError, InputError
from sightline.util.names import format_size
from sightline.util.provenance import VERSION

EMBEDDED = "embedded"
NO_IMAGES = "there are no images; give --data FOLDER, or --checkpoint with a run folder"


class Session:
    """The models of a choice and their images.

    Args:
        choice: the models.
        device: where they run.
        data: an image file, folder, pattern, tar file, dataset or "embedded"; by default the images of the run that
            the first checkpoint is from.
    """

    def __init__(self, choice: ModelChoice, device: torch.device, data: str | None = None) -> None:
        self.choice, self.device, self.data = choice, device, data
        self.models: list[StudyModel] = []
        self.names: Sequence[str] | None = None  # of the images that were opened

    @cached_property
    def opened(self) -> list[Loaded]:
        """The checkpoints."""
        return open_checkpoints(self.choice)

    @cached_property
    def run_data(self) -> object | None:
        """The section `data` of the run that the first checkpoint is from."""
        return run_data(Path(self.choice.checkpoints[0]), LABELLED.name) if self.opened else None

    @property
    def has_images(self) -> bool:
        return self.data is not None or self.run_data is not None

    def load(self, classes: int | None = None) -> list[StudyModel]:
        """Make the models; `classes` is the number of outputs of random weights."""
        if not self.models:
            self.models = make_models(self.choice, self.opened, self.device, classes)
        return self.models

    def split(self) -> Split:
        """The labeled images.

        Raises:
            FileError: they cannot be read, or have no labels.
        """
        if not self.has_images:
            raise InputError("--data: no images; give a folder, a file, or embedded, or --checkpoint with a run folder")
        return LABELLED.images(self.data, self.run_data)

    def gallery(self, limit: int) -> "Gallery":
        """At most `limit` images, evenly spread."""
        if self.data is not None and _are_files(self.data):
            gallery = Gallery.of_files(find_images((self.data,))).spread(limit)
        else:
            gallery = Gallery.of_split(self.split()).spread(limit)
        self.names = gallery.names
        return gallery

    def subjects(self, limit: int, check: Callable[[Sequence[Subject]], None] | None = None) -> list[Subject]:
        """The models with at most `limit` images each; `check` rejects models before any image is read."""
        models = self.load()
        if check is not None:
            check([Subject(item.title, item.model) for item in models])
        gallery = self.gallery(limit)
        return [Subject(item.title, item.model, Prepared(gallery, item.card, self.device)) for item in models]

    def labelled(self, limit: int, batch_size: int = 16) -> list[Labelled]:
        """The models with labeled batches of at most `limit` images, evenly spread over classes."""
        try:
            split = self.split()
        except FileError as error:
            raise InputError(f"--data: masking needs labels, one folder of images per class; {error}") from error
        models = self.load(len(split.classes))
        split = thinned(split, limit)
        if self.names is None:  # a paper names its gallery
            self.names = [split.name(i) for i in range(len(split))]
        return labelled_of(models, split, batch_size, self.device)

    def picture(self, subject: Subject) -> Image.Image:
        """The first image of the first subject as it is shown."""
        return shown(subject.images[0], self.models[0].card)

    def material(self, queries: Sequence[Query | Patch], limit: int, labelled: int, longest: int) -> Material:
        """Input to a paper: the models, and the images if there are any."""

        def batches() -> list[Labelled]:
            if not self.opened:
                raise InputError("random weights have no accuracy to lose; give --checkpoint")
            if not self.has_images:
                raise InputError(NO_IMAGES)
            return self.labelled(labelled)

        usual = partial(Material, queries=queries, seed=self.choice.seed, longest=longest, device=self.device)
        if not self.has_images:
            models = [Subject(item.title, item.model) for item in self.load()]
            return usual(models, batches, no_images=NO_IMAGES)
        subjects = self.subjects(limit)
        assert self.names is not None
        return usual(subjects, batches, picture=self.picture(subjects[0]), name=self.names[0])

    def describe(self, what: str) -> dict[str, object]:
        """How the numbers of a study were made."""
        return {
            "instrument": what, "sightline": VERSION, "torch": torch.__version__, "device": str(self.device),
            "models": [item.facts() for item in self.models],
            "images": None if self.names is None else list(self.names),
        }  # fmt: skip

    @property
    def warnings(self) -> list[str]:
        """Notes about the weights for the reader."""
        return [item.warning for item in self.models if item.warning]

    @property
    def sizes(self) -> str:
        """The image sizes of the models."""
        return ", ".join(sorted({format_size(item.card.input_size[1:]) for item in self.models}))


def _are_files(data: str) -> bool:
    """Whether `data` names image files, one by one or by their folder; not an archive or a dataset."""
    archives = Path(data).is_dir() and any(Path(data).glob("*.tar"))
    return data != EMBEDDED and not data.startswith("hfds/") and Path(data).suffix != ".tar" and not archives


@dataclass(frozen=True)
class Gallery:
    """Images by name; `read` decodes one of them to a number of channels."""

    names: Sequence[str]
    read: Callable[[int, int], Image.Image]

    @classmethod
    def of_files(cls, files: Sequence[Path]) -> "Gallery":
        return cls([str(file) for file in files], lambda i, channels: load_image(files[i], channels=channels))

    @classmethod
    def of_split(cls, split: Split) -> "Gallery":
        return cls([split.name(i) for i in range(len(split))], split.image)

    def __len__(self) -> int:
        return len(self.names)

    def spread(self, limit: int) -> "Gallery":
        """At most `limit` of them, evenly spread."""
        count = min(limit, len(self))
        chosen = [i * len(self) // count for i in range(count)]
        return Gallery([self.names[i] for i in chosen], lambda i, channels: self.read(chosen[i], channels))


class Prepared(Sequence[Tensor]):
    """The images of a gallery, preprocessed for a model; each is decoded when it is read."""

    def __init__(self, gallery: Gallery, card: ModelCard, device: torch.device) -> None:
        self.gallery, self.device = gallery, device
        self.channels = card.input_size[0]
        self.transform = make_transform(card)

    def __len__(self) -> int:
        return len(self.gallery)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        tensor: Tensor = self.transform(self.gallery.read(index, self.channels))
        return tensor.to(self.device)


def labelled_of(models: Sequence[StudyModel], split: Split, batch_size: int, device: torch.device) -> list[Labelled]:
    """Every model with labeled batches; classes are matched with outputs by name if the outputs have names.

    Raises:
        LabelError: a class of the data has no output.
    """
    found = []
    for item in models:
        names = item.card.classes or tuple(str(i) for i in range(int(item.model.num_classes)))  # type: ignore[arg-type]
        outputs = match(split.classes, names, "names" if item.card.classes else "order")
        labels = torch.tensor([outputs[target] for target in split.targets])
        found.append(Labelled(item.title, item.model, partial(_batches, split, item.card, labels, batch_size, device)))
    return found


def _batches(
    split: Split, card: ModelCard, labels: Tensor, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    for images, indices in one_pass(split, card, batch_size):
        yield images.to(device), labels[indices].to(device)


def thinned(split: Split, limit: int) -> Split:
    """At most `limit` images of a split, evenly spread over its classes."""
    if len(split) <= limit:
        return split
    order = sorted(range(len(split)), key=lambda i: split.targets[i])
    chosen = sorted(order[i * len(order) // limit] for i in range(limit))
    targets = dict(zip(split.indices, split.targets, strict=True))
    return Split(split.reader, targets, split.classes, split.title, [split.indices[i] for i in chosen])
