"""The models of a study: checkpoints or random weights, each with its own mechanism or with others."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from sightline.analysis.capture import attention_blocks
from sightline.analysis.study import Facts
from sightline.hub import load
from sightline.models.base import Arguments, VisionModel
from sightline.models.factory import create_model, variant_name
from sightline.models.weights.fit import fit_mechanism
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import at_size, card_of
from sightline.tasks.registry import LABELLED
from sightline.util.errors import FileError, InputError

DEFAULT = "inline_deit_tiny"


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

    def facts(self) -> Facts:
        return {
            "title": self.title, "model": self.name, "checkpoint": self.checkpoint, "attention": self.attention,
            "random": self.checkpoint is None, "replaced": self.replaced, "seed": self.seed,
            "random_tensors": list(self.fresh), "input_size": list(self.card.input_size),
        }  # fmt: skip


def open_model(source: str, name: str | None, args: Arguments, size: tuple[int, int] | None, seed: int) -> StudyModel:
    """The classifier in a run folder or file of weights."""
    loaded = load(source, model=name, model_args=args)
    if loaded.task != LABELLED.name or not isinstance(loaded.card, ModelCard):
        raise FileError(f"{loaded.path}: expected a classifier, got a model for {loaded.task}")
    title = loaded.card.title
    if not attention_blocks(loaded.model):
        raise InputError(f"{title} has no attention blocks of sightline; choose a model of `sightline list`")
    return StudyModel(title, title, loaded.model, at_size(loaded.card, size), source, None, seed)


def random_model(name: str | None, args: Arguments, attention: str | None, seed: int) -> StudyModel:
    """A model without a checkpoint: the same weights every time."""
    name = variant_name(name or DEFAULT)
    model = _create(name, args if attention is None else {**args, "attention": attention}, seed)
    card = card_of(name, {}, model, (), model.in_chans, model.img_size)
    return StudyModel(name, name, model, card, None, attention, seed)


def _create(name: str, args: Arguments, seed: int) -> VisionModel:
    """A model of sightline with random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = create_model(name, **args)
    assert isinstance(model, VisionModel)
    return model.eval()


def with_attention(base: StudyModel, attention: str) -> StudyModel:
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


def with_titles(found: Sequence[StudyModel], sources: int, mechanisms: int) -> list[StudyModel]:
    """The models with the shortest titles that distinguish them."""
    titles = []
    for item in found:
        parts = [item.attention] if mechanisms > 1 and item.attention else []
        if item.checkpoint is not None and (sources > 1 or not parts):
            path = Path(item.checkpoint)
            parts.insert(0, path.resolve().name if path.is_dir() else path.stem)
        titles.append(", ".join(parts) or item.title)
    if len(set(titles)) < len(titles):
        titles = [f"{i}: {title}" for i, title in enumerate(titles, 1)]
    return [replace(item, title=title) for item, title in zip(found, titles, strict=True)]
