"""The model that is trained and its teacher, built by timm's registry."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from sightline.data.images import MODES
from sightline.models.base import to_pair
from sightline.models.weights.heads import check_recorded
from sightline.models.weights.reader import read_weights
from sightline.models.zoo import VARIANTS
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data, Distill, Model
from sightline.tasks.create import create
from sightline.tasks.preprocess import card_of, per_channel
from sightline.util.errors import FileError, InputError
from sightline.util.files import jsonable
from sightline.util.text import say


def build(config: Model, data: Data, classes: tuple[str, ...]) -> tuple[nn.Module, ModelCard]:
    """The model with its starting weights, and its card.

    Raises:
        InputError, FileError: there is no such model or argument, or the weights do not fit.
    """
    check_arguments(config, data, len(classes))
    model, kwargs = _created(config, data.size, {**config.args, "num_classes": len(classes)})
    if config.checkpoint is not None:
        load_weights(model, config.checkpoint)
    if config.grad_checkpointing:
        model.set_grad_checkpointing()  # type: ignore[operator]
    arguments = cast(dict[str, object], jsonable(kwargs))
    size: Any = data.size or kwargs.get("img_size")
    card = card_of(config.name, arguments, model, classes, kwargs.get("in_chans"), size)
    mean, std = _channels("mean", data.mean, card.mean), _channels("std", data.std, card.std)
    crop_pct = data.crop_pct or card.crop_pct
    return model, replace(card, mean=mean, std=std, interpolation=data.interpolation, crop_pct=crop_pct)


def _created(config: Model, size: Any, kwargs: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """The model, and its arguments: with the size of the images if it takes one, as most transformers do."""
    drops = {key: value for key, value in (("drop_rate", config.drop), ("drop_path_rate", config.drop_path)) if value}
    pretrained = config.pretrained and config.checkpoint is None
    sized = kwargs if size is None else {**kwargs, "img_size": size}
    try:
        return create(config.name, {**sized, **drops}, pretrained), sized
    except InputError as error:
        if config.name in VARIANTS or not isinstance(error.__cause__, TypeError):
            raise
    return create(config.name, {**kwargs, **drops}, pretrained), kwargs


def check_arguments(config: Model, data: Data, classes: int) -> None:
    """Reject arguments of the model that the data contradict.

    Raises:
        InputError: another number of classes or another size than the data's, or channels that images do not have.
    """
    args: Mapping[str, Any] = config.args
    if args.get("num_classes", classes) != classes:
        raise InputError(
            f"model.args: num_classes={args['num_classes']}, but the data has {classes} classes; leave it out"
        )
    if args.get("in_chans", 3) not in MODES:
        raise InputError(f"model.args: in_chans={args['in_chans']}, but images are read with 3 channels or 1; give one")
    size = args.get("img_size")
    if data.size is not None and size is not None and to_pair(size) != to_pair(data.size):
        raise InputError(f"model.args: img_size={size}, but data.size={data.size}; leave img_size out")


def load_weights(model: nn.Module, path: str) -> None:
    """Read weights as data only; a new classifier or attention mechanism keeps its initial values.

    Raises:
        FileError: they do not fit, or are of a segmenter or detector.
    """
    weights = read_weights(path)
    what = {"segmentation": "a segmenter", "detection": "a detector"}.get(weights.metadata.get("task", ""))
    if what is not None:
        raise FileError(f"{path}: {what}, not a classifier; give the weights that its backbone started from")
    check_recorded(weights, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = weights.state
        head = model.get_classifier()  # type: ignore[operator]
        if type(model).__module__.startswith("timm.") and isinstance(head, nn.Module):
            own = model.state_dict()
            heads = {id(p) for p in head.parameters()}
            names = {n for n, p in model.named_parameters() if id(p) in heads}
            state = {k: own[k] if k in names and v.shape != own[k].shape else v for k, v in state.items()}
        try:
            model.load_state_dict(state)
        except (RuntimeError, ValueError) as error:
            raise FileError(f"{path}: {' '.join(str(error).split())[:300]}") from error
    for warning in caught:
        if any(word in str(warning.message) for word in ("classifier", "attention mechanism", "number of heads")):
            say(f"{path}: {warning.message}")


def _channels(what: str, given: tuple[float, ...] | None, usual: tuple[float, ...]) -> tuple[float, ...]:
    """The mean or deviation of every channel: one that is given counts for all."""
    if given is not None and len(given) not in (1, len(usual)):
        raise InputError(f"data.{what}: {list(given)} has {len(given)} values for {len(usual)} channels")
    return per_channel(given, len(usual)) if given else usual


def build_teacher(config: Distill, classes: int, channels: int, device: torch.device) -> nn.Module | None:
    """The teacher in evaluation mode, without gradients; None if there is none."""
    if config.teacher is None:
        return None
    kwargs = {"num_classes": classes, "in_chans": channels, **config.args}
    teacher = create(config.teacher, kwargs, config.checkpoint is None, "distill")
    if config.checkpoint is not None:
        load_weights(teacher, config.checkpoint)
    return teacher.eval().requires_grad_(False).to(device)
