"""Models, images and labels for the studies of `sightline.analysis`: from checkpoints, files and data sets."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import overload

import torch
from PIL import Image
from torch import Tensor, nn

from sightline.analysis.capture import attention_blocks
from sightline.analysis.studies import Subject
from sightline.analysis.studies.masking import Labelled
from sightline.data.images import load_image
from sightline.data.labels import match
from sightline.data.splits import Split
from sightline.models.weights.fit import fit_mechanism
from sightline.models.zoo import VARIANTS, create
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.passes import one_pass
from sightline.tasks.classification.preprocess import at_size, make_transform
from sightline.util.errors import FileError, InputError
from sightline.util.names import format_size

Arguments = Mapping[str, object]


Open = Callable[[str], Loaded]  # opens a run folder or a file of weights


@dataclass(frozen=True)
class ModelChoice:
    """Which models to study: every checkpoint with every mechanism.

    Args:
        checkpoints: run folders or files of weights; without one, weights are random.
        attention: mechanisms to put into the model, keeping the weights that fit.
        name, args: the variant and its arguments if there is no checkpoint.
        size: (height, width) of the images; by default as trained.
        seed: of random weights.
    """

    checkpoints: Sequence[str] = ()
    attention: Sequence[str] = ()
    name: str = "inline_deit_tiny"
    args: Arguments = field(default_factory=dict)
    size: tuple[int, int] | None = None
    seed: int = 0


@dataclass(frozen=True)
class StudyModel:
    """A model under study and the origin of its weights.

    Args:
        title: unique among the models of one study.
        name: the variant.
        replaced: whether the weights were trained with another mechanism.
        fresh: tensors that kept random values because the checkpoint has none that fit.
    """

    title: str
    name: str
    model: nn.Module
    card: ModelCard
    checkpoint: str | None
    attention: str | None
    seed: int
    replaced: bool = False
    fresh: tuple[str, ...] = ()

    @property
    def warning(self) -> str | None:
        """What a reader must know about the weights."""
        if self.checkpoint is None:
            return f"{self.title}: the weights are RANDOM (seed {self.seed}); nothing here was learned"
        if not self.replaced:
            return None
        text = f"{self.title}: the weights were trained with another mechanism"
        if self.fresh:
            text += f", and {len(self.fresh)} that do not fit are RANDOM (seed {self.seed}), such as {self.fresh[0]}"
        return text

    def facts(self) -> dict[str, object]:
        return {
            "title": self.title, "model": self.name, "checkpoint": self.checkpoint, "attention": self.attention,
            "random": self.checkpoint is None, "replaced": self.replaced, "seed": self.seed,
            "random_tensors": list(self.fresh), "input_size": list(self.card.input_size),
        }  # fmt: skip


def load_models(
    choice: ModelChoice, open_checkpoint: Open, device: torch.device, classes: int | None = None
) -> list[StudyModel]:
    """The models of a choice, in evaluation mode on a device; `classes` is for models with random weights.

    Raises:
        InputError: a model has no attention blocks of sightline, or cannot take another mechanism.
    """
    found: list[StudyModel] = []
    for source in choice.checkpoints:
        opened = open_checkpoint(source)
        card = _classifier_card(opened)
        card = card if choice.size is None else at_size(card, choice.size)
        base = StudyModel(opened.title, opened.title, opened.model, card, source, None, choice.seed)
        found += [_with_attention(base, name) for name in choice.attention] or [base]
    if not choice.checkpoints:
        found = [_random(choice, classes, name) for name in choice.attention or (None,)]
    found = _titled(found, len(choice.checkpoints), len(choice.attention))
    for item in found:
        item.model.eval().to(device)
        if not attention_blocks(item.model):
            raise InputError(f"{item.name} has no attention blocks of sightline; choose a model of `sightline list`")
    return found


def _classifier_card(opened: Loaded) -> ModelCard:
    """The card of a classifier; other tasks have no single map of attention per image."""
    if opened.task != "classification" or not isinstance(opened.card, ModelCard):
        raise FileError(f"{opened.path}: a model of {opened.task}, not a classifier; give the weights of a classifier")
    return opened.card


def _random(choice: ModelChoice, classes: int | None, attention: str | None) -> StudyModel:
    """A model without a checkpoint: the same weights every time."""
    from timm.data import resolve_model_data_config

    args = dict(choice.args)
    if choice.size is not None:
        args.setdefault("img_size", choice.size)
    if classes is not None:
        args.setdefault("num_classes", classes)
    if attention is not None:
        args["attention"] = attention
    model = _create(choice.name, args, choice.seed)
    usual = resolve_model_data_config(model)
    channels, height, width = _channels(model), *_img_size(model)
    mean, std = (tuple(usual[key]) if len(usual[key]) == channels else (0.5,) * channels for key in ("mean", "std"))
    size = (channels, height, width)
    card = ModelCard(choice.name, {}, (), size, mean, std, usual["interpolation"], usual["crop_pct"])
    return StudyModel(choice.name, choice.name, model, card, None, attention, choice.seed)


def _create(name: str, args: Arguments, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return create(name, **args)  # type: ignore[arg-type]
        except TypeError as error:
            raise InputError(f"--model-args: {name} cannot be built: {error}") from error


def _channels(model: nn.Module) -> int:
    channels = model.in_chans
    assert isinstance(channels, int)
    return channels


def _img_size(model: nn.Module) -> tuple[int, int]:
    size = model.img_size
    assert isinstance(size, tuple)
    return size


def _with_attention(base: StudyModel, attention: str) -> StudyModel:
    """The same model with another mechanism; weights of the same name and shape are kept."""
    card = base.card
    if card.name not in VARIANTS:
        raise InputError(f"--attention: {card.name} is not a model of sightline; leave --attention out")
    outputs = {"num_classes": base.model.num_classes, "in_chans": base.model.in_chans}
    model = _create(card.name, {**card.arguments, "attention": attention, **outputs}, base.seed)
    own, given = model.state_dict(), base.model.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `warning` names what is random
        state = fit_mechanism(given, model)
    kept = {key: value for key, value in state.items() if key in own and own[key].shape == value.shape}
    fresh = tuple(key for key in own if key not in kept or (key not in given and torch.equal(kept[key], own[key])))
    model.load_state_dict({**own, **kept})
    replaced = _mechanisms(model) != _mechanisms(base.model)
    return replace(base, model=model, attention=attention, replaced=replaced, fresh=fresh)


def _mechanisms(model: nn.Module) -> list[str]:
    return [str(module.mechanism) for module in model.modules() if hasattr(module, "mechanism")]


def _titled(found: list[StudyModel], sources: int, mechanisms: int) -> list[StudyModel]:
    """Titles that tell the models apart, and no longer than that needs."""
    titles = []
    for item in found:
        parts = [item.attention] if mechanisms > 1 and item.attention else []
        if item.checkpoint is not None and (sources > 1 or not parts):
            path = Path(item.checkpoint)
            parts.insert(0, path.resolve().name if path.is_dir() else path.stem)
        titles.append(", ".join(parts) or item.title)
    unique = len(set(titles)) == len(titles)
    return [
        replace(item, title=title if unique else f"{i}: {title}")
        for i, (item, title) in enumerate(zip(found, titles, strict=True), 1)
    ]


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


def subjects_of(models: Sequence[StudyModel], gallery: Gallery, device: torch.device) -> list[Subject]:
    """Every model with the images as it takes them."""
    return [Subject(item.title, item.model, Prepared(gallery, item.card, device)) for item in models]


def labelled_of(models: Sequence[StudyModel], split: Split, batch_size: int, device: torch.device) -> list[Labelled]:
    """Every model with labelled batches; classes are matched with outputs by name if the outputs have names.

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
    targets = [0] * (max(split.indices) + 1)  # by the reader's index
    for index, target in zip(split.indices, split.targets, strict=True):
        targets[index] = target
    return Split(split.reader, targets, split.classes, split.title, [split.indices[i] for i in chosen])


def describe(
    what: str, device: torch.device, models: Sequence[StudyModel], images: Sequence[str] | None
) -> dict[str, object]:
    """How the numbers of a study were made."""
    from sightline import __version__

    return {
        "instrument": what, "sightline": __version__, "torch": torch.__version__, "device": str(device),
        "models": [item.facts() for item in models], "images": None if images is None else list(images),
    }  # fmt: skip


def sizes_of(models: Sequence[StudyModel]) -> str:
    """The image sizes of some models, for messages."""
    return ", ".join(sorted({format_size(item.card.input_size[1:]) for item in models}))
