"""Teacher and student of a linearization, and the card of the student."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from sightline.data.labels import imagenet_classes
from sightline.layers.pattern import parse_pattern
from sightline.models.attention_error import attention_modules
from sightline.models.base import VisionModel
from sightline.models.linearize import linearize
from sightline.models.weights.checkpoint import Checkpoint, load_model, prefix_errors
from sightline.models.weights.description import recorded_arguments
from sightline.models.weights.identify import arguments
from sightline.models.weights.reader import State, Weights, read_weights
from sightline.models.zoo import VARIANTS
from sightline.tasks.card import ModelCard
from sightline.tasks.create import create
from sightline.tasks.linearize.config import Config, Model
from sightline.tasks.preprocess import card_of
from sightline.util.errors import FileError, InputError
from sightline.util.files import jsonable


def build(config: Config) -> tuple[VisionModel, VisionModel, list[int], ModelCard]:
    """Student, teacher, the blocks in which they differ, and the card of the student.

    Raises:
        InputError: the teacher cannot be linearized, or no block is left to linearize.
        FileError: weights do not fit.
    """
    source = read_teacher(config.model)
    keep = config.linearize.keep
    try:
        teacher = linearize(source, "softmax")
        student = linearize(source, config.linearize.attention, keep if isinstance(keep, int) else list(keep))
    except InputError as error:
        raise InputError(str(error).replace("keep=", "linearize.keep: ", 1)) from error
    if config.linearize.logits and config.linearize.stage == 2 and not student.num_classes:
        raise InputError(
            f"linearize.logits: {config.model.name} has no classifier to learn from; give weights that have one, or "
            f"--linearize.logits 0 for its tokens alone"
        )
    replaced = [
        i
        for i, pair in enumerate(zip(attention_modules(student), attention_modules(teacher), strict=True))
        if len({str(module.mechanism) for module in pair}) == 2
    ]
    other_size = config.linearize.stage == 2 and config.linearize.teacher_size not in (None, config.data.size)
    if not replaced and not other_size:
        if keep in (0, ()):
            raise InputError("linearize.attention: softmax is what the teacher has; give another mechanism")
        raise InputError("linearize.keep: all blocks keep softmax, so that there is nothing to learn; keep fewer")
    given = config.linearize.start or ()
    for path in (given,) if isinstance(given, str) else given:
        start(student, path, replaced)
    return student, teacher, replaced, _card(student, config)


def read_teacher(model: Model) -> nn.Module:
    """The teacher with its weights; the classifier is the one that the weights have.

    Raises:
        InputError: there is no such model, or its weights cannot be downloaded.
        FileError: the weights are of another model.
    """
    args: dict[str, Any] = dict(model.args)
    if model.checkpoint is None:
        return create(model.name, args, model.pretrained)
    weights = read_weights(model.checkpoint)
    if model.name in VARIANTS:
        with prefix_errors(weights.path):
            return load_model(Checkpoint.of(weights), model.name, args).model
    head = weights.state.get("head.weight", weights.state.get("head.fc.weight"))
    source = create(model.name, {"num_classes": 0 if head is None else head.shape[0], **args})
    try:
        source.load_state_dict(weights.state)
    except RuntimeError as error:
        why = " ".join(str(error).split()).partition("state_dict")[2][:200]
        raise FileError(f"{weights.path}: the weights are not those of {model.name}{why}") from error
    return source


def start(student: VisionModel, path: str, replaced: list[int]) -> None:
    """Load weights that a student starts from; a block with another mechanism there keeps the attention that it has.

    Raises:
        FileError: they are of another model.
    """
    weights = read_weights(path)
    modules = attention_modules(student)
    mine = [str(module.mechanism) for module in modules]
    theirs = _mechanisms(weights, len(modules)) or [name if i in replaced else "" for i, name in enumerate(mine)]
    other = [i for i, pair in enumerate(zip(mine, theirs, strict=True)) if len(set(pair)) == 2]
    if wrong := [i for i in other if theirs[i] and "softmax" not in (mine[i], theirs[i])]:
        raise FileError(f"{weights.path}: block {wrong[0]} has {theirs[wrong[0]]}, and this student {mine[wrong[0]]}")
    names = [name for name, module in student.named_modules() if module in set(modules)]
    kept = tuple(f"{names[i]}." for i in other) or ("\0",)
    own: State = dict(student.state_dict())
    found = {key: value for key, value in weights.state.items() if not key.startswith(kept)}
    misfits = [key for key in own if not key.startswith(kept) and key not in found]
    misfits += [key for key, value in found.items() if key not in own or own[key].shape != value.shape]
    if misfits:
        raise FileError(f"{weights.path}: not the weights of this student: {misfits[0]} does not fit")
    student.load_state_dict({**own, **found})


def _mechanisms(weights: Weights, blocks: int) -> list[str]:
    """The mechanism of every block as a file records it; empty if it does not."""
    with prefix_errors(weights.path):
        card = ModelCard.from_metadata(weights.metadata)
    if card is None or card.name not in VARIANTS:
        return []
    args: dict[str, Any] = {**arguments(card.name), **card.arguments}
    depths = (args["depths"],) if isinstance(args["depths"], int) else tuple(args["depths"])
    found = [str(spec) for stage in parse_pattern(args["attention"], depths) for spec in stage]
    return found if len(found) == blocks else []


def _card(student: VisionModel, config: Config) -> ModelCard:
    cfg: dict[str, Any] = student.pretrained_cfg  # type: ignore[assignment]
    args = {**recorded_arguments(cfg.get("notes"), type(student)), "num_classes": student.num_classes}
    size: Any = config.data.size or student.img_size
    known = imagenet_classes()
    count = student.num_classes
    classes = known if count == len(known) else tuple(f"class {i}" for i in range(count))
    arguments = cast(dict[str, object], jsonable(args))
    card = card_of(str(cfg["architecture"]), arguments, student, classes, student.in_chans, size)
    return replace(card, crop_pct=config.data.crop_pct or card.crop_pct)


def to_device(model: VisionModel, device: torch.device) -> VisionModel:
    """The model on its device, in float32."""
    return model.to(device, torch.float32)
