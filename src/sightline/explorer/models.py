"""The models to explore: checkpoints, or a default; each with its own attention, or with others on its weights."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import timm
import torch

from sightline.analysis.capture import attention_blocks
from sightline.data.labels import imagenet_classes
from sightline.engine.study_models import StudyModel, open_model, random_model, with_attention
from sightline.explorer.kept import Kept
from sightline.explorer.pictures import UnknownError
from sightline.layers.table import MECHANISMS
from sightline.models.base import Arguments
from sightline.models.factory import check_name
from sightline.models.linearize import linearize
from sightline.models.weights.description import recorded_arguments
from sightline.models.weights.packaged import DEFAULT as PACKAGED
from sightline.models.weights.packaged import packaged
from sightline.models.weights.published import PUBLISHED, cache_folder
from sightline.models.weights.reader import read_weights
from sightline.models.zoo import VARIANTS
from sightline.tasks.linearize.config import Model
from sightline.tasks.linearize.model import read_teacher
from sightline.tasks.preprocess import card_of
from sightline.tasks.registry import task_of
from sightline.util.errors import FileError, InputError, shown
from sightline.util.text import one_line

DEFAULT = "inline_deit_tiny"
FIRST = (None, "softmax", "linear")  # mechanisms to start with if nothing is given: that of the model, and two more
TWINS = 9  # models with another attention that are kept


class Models:
    """All models by id.

    Args:
        checkpoint: run folders or files of weights; without one, the default.
        attention: mechanisms beside those of the table.
        name, args: the variant and its arguments, if a checkpoint leaves them open or there is none.

    Raises:
        FileError: a file cannot be read, or is not a classifier.
        InputError: there is no such model or argument.
    """

    def __init__(
        self,
        checkpoint: Sequence[str] = (),
        attention: Sequence[str] = (),
        name: str | None = None,
        args: Arguments | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.device, self.is_default = device or torch.device("cpu"), not checkpoint
        args = args or {}
        opened = [open_any(path, name, args) for path in checkpoint] or [default_model(name, args)]
        titles = [_title(item) for item in opened]
        if len(set(titles)) < len(titles):
            titles = [f"{i}: {title}" for i, title in enumerate(titles, 1)]
        for item in opened:
            if item.card.input_size[0] not in (1, 3):
                raise InputError(f"{item.name} takes images of {item.card.input_size[0]} channels; 1 or 3 can be shown")
        self.bases = {
            f"m{i}": replace(item, title=title) for i, (item, title) in enumerate(zip(opened, titles, strict=True))
        }
        self.attentions = list(dict.fromkeys([*attention, *MECHANISMS]))
        self._made: Kept[StudyModel] = Kept(TWINS)

    @property
    def first(self) -> StudyModel:
        return self.bases["m0"]

    def find(self, id: str, attention: str | None) -> StudyModel:
        """A model, with another attention if one is given.

        Raises:
            UnknownError: there is no such model.
            InputError: there is no such attention, or it does not fit the model.
        """
        if id not in self.bases:
            raise UnknownError("no such model")
        if attention is not None and attention not in self.attentions:
            raise InputError(f"attention: expected one of {', '.join(self.attentions)}; got {shown(attention)}")
        return self._made.get((id, attention), lambda: self._make(self.bases[id], attention))

    def _make(self, base: StudyModel, attention: str | None) -> StudyModel:
        found = base
        if attention is not None:
            found = replace(with_attention(base, attention), title=f"{base.title}, {attention}")
        model = found.model if self.device.type == "cpu" else deepcopy(found.model).to(self.device)
        return replace(found, model=model.float().eval().requires_grad_(False))


def default_model(name: str | None, args: Arguments) -> StudyModel:
    """The model in the package, or one by name: with weights of the package or downloaded before, else random ones."""
    if not args and (path := packaged(name or PACKAGED)) is not None:
        return open_model(str(path), None, args, None, 0)
    name = name or DEFAULT
    if name not in VARIANTS and timm.is_model(name):
        raise InputError(f"checkpoint: {name} is a model of timm; give a file with its weights")
    downloaded = cache_folder() / f"{name}.pth"
    if name in PUBLISHED and not args and downloaded.is_file():
        return open_model(str(downloaded), name, args, None, 0)
    found = random_model(name, args, None, 0)
    return replace(found, card=replace(found.card, arguments=dict(args)))


def open_any(source: str, name: str | None, args: Arguments) -> StudyModel:
    """A run folder or file of weights; with the name of one of timm's vision transformers, weights of that.

    A file that says what it is needs no name, so that a run can stand beside weights of timm.
    """
    if name is None or name in VARIANTS:
        return open_model(source, name, args, None, 0)
    check_name(name)
    if task_of(read_weights(source).metadata) is not None:
        return open_model(source, None, {}, None, 0)
    model = linearize(read_teacher(Model(name=name, checkpoint=source, args=args)), "softmax").float().eval()
    if not model.num_classes:
        raise FileError(f"{source}: these weights have no classifier; give a checkpoint that has one")
    assert attention_blocks(model)
    cfg: Arguments = model.pretrained_cfg  # type: ignore[assignment]
    arguments = {**recorded_arguments(cfg.get("notes"), type(model)), "num_classes": model.num_classes}
    known = imagenet_classes()
    classes = known if model.num_classes == len(known) else ()
    card = card_of(str(cfg["architecture"]), arguments, model, classes, model.in_chans, model.img_size)
    return StudyModel(name, name, model, card, source, None, 0)


def _title(item: StudyModel) -> str:
    """What a model is called: by its file or folder, without the path."""
    if item.checkpoint is None:
        return f"{item.name} (random weights)"
    path = Path(item.checkpoint)
    return one_line(path.resolve().name if path.is_dir() else path.stem, 80)
