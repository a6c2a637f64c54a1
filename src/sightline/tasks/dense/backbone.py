"""Backbones for dense heads: four maps at strides 4, 8, 16 and 32, from any model with features."""

import math
import re
import warnings
from functools import partial
from itertools import pairwise
from typing import Any

import timm
import torch
from timm.layers import Format, LayerNorm2d
from torch import Tensor, nn

from sightline.models.base import FeatureNet
from sightline.models.weights.fit import MismatchError
from sightline.models.weights.heads import check_recorded
from sightline.models.weights.reader import read_weights
from sightline.models.weights.recorded import check_recordable
from sightline.models.zoo import VARIANTS
from sightline.tasks.create import create
from sightline.tasks.dense.config import DenseModel
from sightline.util.errors import FileError, InputError
from sightline.util.text import say

STRIDES = (4, 8, 16, 32)
TRIED = (64, 96)  # sides of an image that a model of timm is tried with
UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")
# The prefix of a backbone in the weights of a segmenter or detector.
INSIDE = re.compile(r"^(?:\w+\.)*backbone\.body\.(?:model\.)?")


class Backbone(nn.Module):
    """Images (B, 3, H, W), sides multiples of 32 -> maps at STRIDES with `channels`.

    A pyramid gives its stages. A plain transformer gives the map of its last block, and a simple feature pyramid makes
    the others by transposed convolutions and pooling (Exploring Plain Vision Transformer Backbones for Object
    Detection, ECCV 2022).

    Args:
        config: name, arguments and starting weights.
        norm: normalize every map, for heads that do not.
    """

    def __init__(self, config: DenseModel, norm: bool = True) -> None:
        super().__init__()
        self.body, self.indices = _features(config)
        info = [self.body.feature_info.info[i] for i in self.indices]
        self.plain = len(info) == 1
        self.channels = tuple(int(item["num_chs"]) for item in info)
        if self.plain:
            width, stride = self.channels[0], info[0]["reduction"]
            self.levels = nn.ModuleList([_level(width, stride, target) for target in STRIDES])
            self.channels = tuple(_width(width, stride, target) for target in STRIDES)
        self.norms = nn.ModuleList([LayerNorm2d(dim) if norm else nn.Identity() for dim in self.channels])
        if config.checkpoint is not None:
            _load(self.body, config.checkpoint)
        if config.grad_checkpointing:
            self.body.set_grad_checkpointing()

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.body(x)
        maps = [maps[i] for i in self.indices]
        if getattr(self.body, "output_fmt", None) == Format.NHWC:  # of timm's Swin
            maps = [x.permute(0, 3, 1, 2).contiguous() for x in maps]
        if self.plain:
            maps = [level(maps[0]) for level in self.levels]
        return [norm(x) for norm, x in zip(self.norms, maps, strict=True)]


def _features(config: DenseModel) -> tuple[Any, list[int]]:
    """A model that gives maps, of timm's class, and which of them to take."""
    kwargs: dict[str, object] = {**config.args}
    if config.drop_path:
        kwargs["drop_path_rate"] = config.drop_path
    if config.name in VARIANTS:
        model: Any = create(config.name, {**kwargs, "num_classes": 0}, config.pretrained and config.checkpoint is None)
        if model.num_stages == 1:
            return FeatureNet(model, (len(model.feature_info) - 1,)), [0]
        strides = [stage["reduction"] for stage in model.feature_info]
        if strides != list(STRIDES):
            raise InputError(f"model.args: {config.name} gives maps at strides {strides}, not at 4, 8, 16 and 32")
        return FeatureNet(model, model.default_features), list(range(len(STRIDES)))
    create(config.name, {})  # raises for an unknown name
    try:
        check_recordable(config.args)
    except InputError as error:
        raise InputError(f"model.args: {error}") from error
    if config.checkpoint is not None:
        raise InputError(f"model.checkpoint: {config.name} is timm's; pass model.pretrained=true to take its weights")
    body = _from_timm(config, kwargs)
    strides = body.feature_info.reduction()
    if not set(STRIDES) <= set(strides):
        raise InputError(f"model.name: {config.name} gives maps at strides {strides}, not at 4, 8, 16 and 32")
    channels: Any = config.args.get("in_chans", 3)
    body.train(False)
    try:
        with torch.no_grad():
            body(torch.zeros(1, channels, *TRIED))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise InputError(f"model.name: {config.name} does not take images of any size ({_line(error)})") from error
    return body.train(), [len(strides) - 1 - strides[::-1].index(stride) for stride in STRIDES]


def _from_timm(config: DenseModel, kwargs: dict[str, object]) -> Any:
    """A model of timm that gives maps; one with windows for images of other sizes than its own."""
    make = partial(timm.create_model, config.name, pretrained=config.pretrained, features_only=True)
    try:
        try:
            return make(**{"strict_img_size": False, **kwargs})
        except TypeError as error:
            if "strict_img_size" not in str(error):  # which only some have
                raise
        return make(**kwargs)
    except (TypeError, RuntimeError, ValueError) as error:
        raise InputError(_blame(config.name, error)) from error
    except OSError as error:
        if not config.pretrained:
            raise
        remedy = "check the connection, or leave it out"
        raise InputError(f"model.pretrained: the weights of {config.name} cannot be downloaded; {remedy}") from error


def _blame(name: str, error: Exception) -> str:
    """The key that keeps a model of timm from being built."""
    unknown = UNKNOWN.search(str(error))
    if unknown is None:
        return f"model.name: {name} gives no features ({_line(error)})"
    if unknown[1] == "drop_path_rate":
        return f"model.drop_path: {name} has no stochastic depth; give 0"
    return f"model.args: {name} has no argument {unknown[1]!r}; leave it out"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _load(body: nn.Module, path: str) -> None:
    """Load the weights of a classifier, or of the backbone in a segmenter or detector.

    Another attention mechanism and the head keep their initial values, with a message.
    """
    weights = read_weights(path)
    inside = {INSIDE.sub("", key): value for key, value in weights.state.items() if INSIDE.match(key)}
    if inside:
        say(f"{path}: a segmenter or detector; only its backbone is loaded, the head starts from scratch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            body.load_state_dict(inside or weights.state)
        except (RuntimeError, ValueError) as error:
            remedy = "; give the model.name and model.args of these weights" if isinstance(error, MismatchError) else ""
            raise FileError(f"{path}: {_line(error)}{remedy}") from error
    check_recorded(weights, body)
    for warning in caught:
        if "attention mechanism" in str(warning.message):
            say(f"{path}: {warning.message}")


def _width(width: int, stride: int, target: int) -> int:
    return max(width * target // stride, 8) if target < stride else width


def _level(width: int, stride: int, target: int) -> nn.Module:
    """From the map of a plain transformer to one at stride `target`."""
    steps = math.log2(stride / target)
    if steps != int(steps):
        raise InputError(f"model.args: patches of {stride} pixels; give a power of two for maps at strides 4 to 32")
    if steps < 0:
        return nn.MaxPool2d(2 ** int(-steps))
    widths = [_width(width, stride, stride // 2**step) for step in range(int(steps) + 1)]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [LayerNorm2d(before), nn.GELU()] if layers else []
        layers.append(nn.ConvTranspose2d(before, after, 2, 2))
    return nn.Sequential(*layers)


class WithBackbone(nn.Module):
    """What timm's optimizer factory needs from a model with a `Backbone`."""

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Position tables and class tokens; parameters of one dimension are exempt anyway."""
        parts = ("pos_embed", "cls_token", "position_bias", "relative_position")
        return {name for name, _ in self.named_parameters() if any(part in name for part in parts)}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layers of the backbone for layer-wise learning rates; the head is the last layer."""
        name, backbone = next((n, m) for n, m in self.named_modules() if isinstance(m, Backbone))
        inner = getattr(backbone.body, "model", None)
        if inner is None:
            raise InputError("optim.layer_decay: not for backbones of timm; leave it out")
        start = rf"^{re.escape(name)}\.body\.model\."
        return {key: _prefixed(groups, start) for key, groups in inner.group_matcher(coarse).items()}


def _prefixed(groups: Any, start: str) -> Any:
    """timm's patterns of layers, one or several with their orders, for a model inside another."""
    if isinstance(groups, str):
        return groups.replace("^", start)
    return [(pattern.replace("^", start), order) for pattern, order in groups]
