"""The models of a study: checkpoints or random weights, each with its own mechanism or with others."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from timm.data import resolve_model_data_config
from torch import nn

from sightline.analysis.capture import attention_blocks
from sightline.hub import load
from sightline.models.base import Arguments, VisionModel
from sightline.models.factory import create_model, variant_name
from sightline.models.weights.fit import fit_mechanism
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import at_size
from sightline.tasks.registry import LABELLED
from sightline.util.errors import FileError, InputError

DEFAULT = "inline_deit_tiny"


@dataclass(frozen=True)
class ModelChoice:
    """Which models to study: every checkpoint with every mechanism.

    Args:
        checkpoints: run folders or files of weights; without one, weights are random.
        attention: mechanisms to put into the model, keeping the weights that fit.
        name, args: the variant and its arguments, if a checkpoint leaves them open or there is none.
        size: (height, width) of the images; by default as trained.
        seed: of random weights.
    """

    checkpoints: Sequence[str] = ()
    attention: Sequence[str] = ()
    name: str | None = None
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
        """Notes about the weights for the reader."""
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


def make_models(choice: ModelChoice, device: torch.device, classes: int | None = None) -> list[StudyModel]:
    """The models of a choice, in evaluation mode on a device.

    Args:
        classes: outputs of models with random weights.

    Raises:
        FileError: a file cannot be read, or is not a classifier.
        InputError: there is no such model, argument or mechanism, or a model has no attention blocks of sightline.
    """
    found: list[StudyModel] = []
    for source in choice.checkpoints:
        loaded = load(source, model=choice.name, model_args=choice.args)
        if loaded.task != LABELLED.name or not isinstance(loaded.card, ModelCard):
            raise FileError(f"{loaded.path}: expected a classifier, got a model for {loaded.task}")
        if not attention_blocks(loaded.model):
            raise InputError(
                f"{loaded.card.title} has no attention blocks of sightline; choose a model of `sightline list`"
            )
        card = at_size(loaded.card, choice.size)
        base = StudyModel(loaded.card.title, loaded.card.title, loaded.model, card, source, None, choice.seed)
        found += [_with_attention(base, name) for name in choice.attention] or [base]
    if not choice.checkpoints:
        found = [_random(choice, classes, name) for name in choice.attention or (None,)]
    for item in found:
        item.model.to(device)
    return _titled(found, len(choice.checkpoints), len(choice.attention))


def _random(choice: ModelChoice, classes: int | None, attention: str | None) -> StudyModel:
    """A model without a checkpoint: the same weights every time."""
    name, args = variant_name(choice.name or DEFAULT), dict(choice.args)
    if choice.size is not None:
        args.setdefault("img_size", choice.size)
    if classes is not None:
        args.setdefault("num_classes", classes)
    if attention is not None:
        args["attention"] = attention
    model = _create(name, args, choice.seed)
    usual, channels = resolve_model_data_config(model), model.in_chans
    mean, std = (tuple(usual[key]) if len(usual[key]) == channels else (0.5,) * channels for key in ("mean", "std"))
    size = (channels, *model.img_size)
    card = ModelCard(name, {}, (), size, mean, std, usual["interpolation"], usual["crop_pct"])
    return StudyModel(name, name, model, card, None, attention, choice.seed)


def _create(name: str, args: Arguments, seed: int) -> VisionModel:
    """A model of sightline with random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create_model(name, **args)
    assert isinstance(model, VisionModel)
    return model.eval()


def _with_attention(base: StudyModel, attention: str) -> StudyModel:
    """The same model with another mechanism; weights of the same name and shape are kept."""
    outputs = {"num_classes": base.model.num_classes, "in_chans": base.model.in_chans}
    model = _create(base.card.name, {**base.card.arguments, "attention": attention, **outputs}, base.seed)
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
    """The shortest titles that distinguish the models."""
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
