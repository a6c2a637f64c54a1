"""The model that is trained and its teacher, built by timm's registry."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from timm.data import resolve_model_data_config
from torch import nn

from sightline.data.images import MODES
from sightline.models.weights.heads import check_recorded
from sightline.models.weights.reader import read_weights
from sightline.models.zoo import VARIANTS
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data, Distill, Model
from sightline.tasks.create import create
from sightline.util.errors import FileError, InputError


def build(config: Model, data: Data, classes: tuple[str, ...]) -> tuple[nn.Module, ModelCard]:
    """The model with its starting weights, and its card.

    Raises:
        InputError, FileError: there is no such model or argument, or the weights do not fit.
    """
    check_arguments(config, data, len(classes))
    kwargs = dict(config.args)
    if data.size is not None and config.name in VARIANTS:
        kwargs["img_size"] = data.size
    kwargs = {**kwargs, "num_classes": len(classes)}
    drops = {key: value for key, value in (("drop_rate", config.drop), ("drop_path_rate", config.drop_path)) if value}
    model = create(config.name, {**kwargs, **drops}, config.pretrained)
    if config.checkpoint is not None:
        load_weights(model, config.checkpoint)
    if config.grad_checkpointing:
        model.set_grad_checkpointing()  # type: ignore[operator]
    return model, card_of(config.name, kwargs, model, data, classes)


def check_arguments(config: Model, data: Data, classes: int) -> None:
    """Reject arguments of the model that the data contradict.

    Raises:
        InputError: another number of classes or another size than the data's, or channels that images do not have.
    """
    args = config.args
    if args.get("num_classes", classes) != classes:
        raise InputError(
            f"model.args: num_classes={args['num_classes']}, but the data has {classes} classes; leave it out"
        )
    if args.get("in_chans", 3) not in MODES:
        raise InputError(f"model.args: in_chans={args['in_chans']}, but images are read with 3 channels or 1; give one")
    size = args.get("img_size")
    if data.size is not None and size is not None and _pair(size) != _pair(data.size):
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
        except RuntimeError as error:
            raise FileError(f"{path}: {' '.join(str(error).split())[:300]}") from error
        except ValueError as error:
            raise FileError(f"{path}: {error}") from error
    for warning in caught:
        if any(word in str(warning.message) for word in ("classifier", "attention mechanism", "number of heads")):
            print(f"{path}: {warning.message}", flush=True)


def card_of(name: str, kwargs: Mapping[str, Any], model: nn.Module, data: Data, classes: tuple[str, ...]) -> ModelCard:
    """The input of the model: as configured, else as it was published with."""
    usual = resolve_model_data_config(model)
    channels = int(kwargs.get("in_chans", usual["input_size"][0]))
    size = data.size or kwargs.get("img_size") or usual["input_size"][1:]
    height, width = (size, size) if isinstance(size, int) else size
    return ModelCard(
        name,
        {key: _list(value) for key, value in kwargs.items()},
        classes,
        (channels, int(height), int(width)),
        _channels("mean", data.mean, usual["mean"], channels),
        _channels("std", data.std, usual["std"], channels),
        data.interpolation,
        data.crop_pct or usual["crop_pct"],
    )


def _channels(what: str, given: tuple[float, ...] | None, usual: tuple[float, ...], channels: int) -> tuple[float, ...]:
    values = given or usual
    if len(values) != channels and (given is None or len(given) == 1):
        values = (sum(values) / len(values),) * channels
    if len(values) != channels:
        raise InputError(f"data.{what}: {list(values)} has {len(values)} values for {channels} channels")
    return tuple(float(value) for value in values)


def build_teacher(config: Distill, classes: int, channels: int, device: torch.device) -> nn.Module | None:
    """The teacher in evaluation mode, without gradients; None if there is none."""
    if config.teacher is None:
        return None
    kwargs = {"num_classes": classes, "in_chans": channels, **config.args}
    teacher = create(config.teacher, kwargs, config.checkpoint is None, "distill")
    if config.checkpoint is not None:
        load_weights(teacher, config.checkpoint)
    return teacher.eval().requires_grad_(False).to(device)


def _pair(size: object) -> tuple[object, ...]:
    return tuple(size) if isinstance(size, list | tuple) else (size, size)


def _list(value: object) -> object:
    return [_list(v) for v in value] if isinstance(value, list | tuple) else value
