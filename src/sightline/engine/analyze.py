"""The models, images and labels of a study, from checkpoints, files and datasets; opened on first use.

session = Session(torch.device("cpu"), ["runs/quick"], limit=8)
study_locality(session.subjects)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from sightline.analysis.capture import spread
from sightline.analysis.masking import Labelled
from sightline.analysis.study import Facts, Subject
from sightline.data.images import find_images, load_image
from sightline.data.labels import match
from sightline.data.splits import HF, Split
from sightline.engine.evaluate import run_data
from sightline.engine.study_models import StudyModel, open_model, random_model, with_attention, with_titles
from sightline.models.base import Arguments
from sightline.models.weights.packaged import DEFAULT, packaged
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import make_transform, one_pass, shown
from sightline.tasks.registry import LABELLED
from sightline.util.errors import FileError, InputError
from sightline.util.names import format_size
from sightline.util.provenance import VERSION

EMBEDDED = "embedded"
Photo = tuple[str, Callable[[int], Image.Image]]  # its name, and what decodes it to a number of channels


@dataclass
class Session:
    """Models, every checkpoint with every mechanism, and their images.

    Args:
        checkpoint: run folders or files of weights; without one, the model in the package if nothing else says which,
            and otherwise random weights.
        attention: mechanisms to put into the model, keeping the weights that fit.
        model, model_args: the variant and its arguments, if a checkpoint leaves them open or there is none.
        img_size: (height, width) of the images; by default as trained.
        seed: of random weights.
        data: an image file, folder, pattern, tar file, dataset or "embedded"; by default the images of the run that
            the first checkpoint is from.
        limit: at most so many images of them, evenly spread.
        advance: called with the number of images that were studied since the last call.
    """

    device: torch.device
    checkpoint: Sequence[str] = ()
    attention: Sequence[str] = ()
    model: str | None = None
    model_args: Arguments = field(default_factory=dict)
    img_size: tuple[int, int] | None = None
    seed: int = 0
    data: str | None = None
    limit: int = 32
    advance: Callable[[int], None] = lambda _: None
    passes: int = field(init=False, default=1)  # of a study over the images
    models: list[StudyModel] = field(init=False, default_factory=list)
    names: Sequence[str] = field(init=False, default=())  # of the images that were opened

    def load(self, classes: int | None = None) -> list[StudyModel]:
        """Make the models, in evaluation mode; `classes` is the number of outputs of random weights.

        Raises:
            FileError: a file cannot be read, or is not a classifier.
            InputError: there is no such model, argument or mechanism, or a model has no attention blocks of sightline.
        """
        if self.models:
            return self.models
        unspecified = not (self.checkpoint or self.model or self.model_args or self.attention)
        if unspecified and (path := packaged(DEFAULT)):
            self.checkpoint = (str(path),)
        if self.checkpoint:
            given = (self.model, self.model_args, self.img_size, self.seed)
            opened = [open_model(path, *given) for path in self.checkpoint]
            found = [with_attention(base, name) for base in opened for name in self.attention] or opened
        else:
            defaults: Arguments = {"img_size": self.img_size, "num_classes": classes}
            args = {key: value for key, value in defaults.items() if value is not None} | self.model_args
            found = [random_model(self.model, args, name, self.seed) for name in self.attention or (None,)]
        for item in found:
            item.model.to(self.device)
        self.models = with_titles(found, len(self.checkpoint), len(self.attention))
        return self.models

    @cached_property
    def run_data(self) -> object | None:
        """The section `data` of the run that the first checkpoint is from."""
        return run_data(Path(self.checkpoint[0]), LABELLED.name) if self.checkpoint else None

    @property
    def has_images(self) -> bool:
        return self.data is not None or self.run_data is not None

    def split(self) -> Split:
        """The labeled images.

        Raises:
            InputError: there are no images.
            FileError: they cannot be read, or have no labels.
        """
        if not self.has_images:
            raise InputError("data: no images; give a folder, a file, or embedded, or a run folder as checkpoint")
        return LABELLED.images(self.data, self.run_data)

    def photos(self) -> list[Photo]:
        """The images, not decoded yet."""
        if self.data is not None and _are_files(self.data):
            files = spread(find_images((self.data,)), self.limit)
            return [(str(file), partial(load_image, file, str(file))) for file in files]
        split = self.split()
        return [(split.name(i), partial(split.image, i)) for i in spread(range(len(split)), self.limit)]

    @cached_property
    def subjects(self) -> list[Subject]:
        """The models with their images."""
        models, photos = self.load(), self.photos()
        self.names = [name for name, _ in photos]
        return [Subject(item.title, item.model, Prepared(photos, item.card, self)) for item in models]

    def labelled(self, limit: int, batch_size: int = 16) -> list[Labelled]:
        """The models with labeled batches of at most `limit` images, evenly spread over classes.

        Classes are matched with outputs by name if the outputs have names.

        Raises:
            InputError: the images have no labels.
            FileError: a class of the data has no output.
        """
        if self.checkpoint:  # their faults come first
            self.load()
        try:
            split = self.split()
        except FileError as error:
            raise InputError(f"data: masking needs labels, one folder of images per class; {error}") from error
        models = self.load(len(split.classes))
        by_class = sorted(range(len(split)), key=lambda i: split.targets[i])
        split = split.subset(sorted(spread(by_class, limit)))
        self.names = self.names or [split.name(i) for i in range(len(split))]  # a paper has named its images
        found = []
        for item in models:
            outputs = item.card.classes or tuple(map(str, range(item.model.num_classes)))  # type: ignore[arg-type]
            of_class = match(split.classes, outputs, "names" if item.card.classes else "order")
            labels = torch.tensor([of_class[target] for target in split.targets])
            found.append(Labelled(item.title, item.model, partial(self._batches, split, item.card, labels, batch_size)))
        return found

    def _batches(
        self, split: Split, card: ModelCard, labels: Tensor, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for images, indices in one_pass(split, card, batch_size):
            yield images.to(self.device), labels[indices].to(self.device)
            self.advance(len(images))

    @property
    def total(self) -> int:
        """How many images will be studied, each pass of each model counted."""
        return self.passes * len(self.models) * len(self.names)

    def picture(self) -> Image.Image:
        """The first image of the first subject as it is shown."""
        return shown(self.subjects[0].images[0], self.models[0].card)

    def describe(self, what: str) -> Facts:
        """How the numbers of a study were made."""
        return {
            "instrument": what, "sightline": VERSION, "torch": torch.__version__, "device": str(self.device),
            "models": [item.facts() for item in self.models], "images": list(self.names) or None,
        }  # fmt: skip

    @property
    def warnings(self) -> list[str]:
        """Notes about the weights for the reader."""
        return [item.warning for item in self.models if item.warning]

    @property
    def sizes(self) -> str:
        """The image sizes of the models."""
        return ", ".join(sorted({format_size(item.card.input_size[1:]) for item in self.models}))


class Prepared(Sequence[Tensor]):
    """Images preprocessed for a model; each is decoded when it is read. A session counts those of a loop."""

    def __init__(self, photos: Sequence[Photo], card: ModelCard, session: Session) -> None:
        self.photos, self.session = photos, session
        self.channels, self.transform = card.input_size[0], make_transform(card)

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]  # one at a time, no slices
        _, decode = self.photos[index]
        return self.transform(decode(self.channels)).to(self.session.device)

    def __iter__(self) -> Iterator[Tensor]:
        for i in range(len(self)):
            yield self[i]
            self.session.advance(1)


def _are_files(data: str) -> bool:
    """Whether `data` names image files, one by one or by their folder; not an archive or a dataset."""
    archives = Path(data).is_dir() and any(Path(data).glob("*.tar"))
    return data != EMBEDDED and not data.startswith(HF) and Path(data).suffix != ".tar" and not archives
