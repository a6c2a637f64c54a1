"""Backbones for dense heads: four maps at strides 4, 8, 16 and 32, from any model with features."""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, cast

import timm
import torch
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from sightline.models.base import FeatureNet, VisionModel
from sightline.models.weights.fit import MismatchError
from sightline.models.weights.heads import check_recorded
from sightline.models.weights.reader import read_weights
from sightline.models.zoo import VARIANTS
from sightline.tasks.create import create
from sightline.tasks.dense.config import DenseModel
from sightline.util.errors import FileError, InputError

STRIDES = (4, 8, 16, 32)
# The prefix of a backbone in the weights of a segmenter or detector.
INSIDE = re.compile(r"^(?:\w+\.)*backbone\.body\.(?:model\.)?")


Groups: TypeAlias = "str | Sequence[tuple[object, object]] | Mapping[str, Groups]"  # timm's patterns of layers


class FeatureInfo(Protocol):
    """timm's description of the maps of a model."""

    info: list[dict[str, int]]

    def reduction(self) -> list[int]: ...


class Body(Protocol):
    """A model that gives maps."""

    feature_info: FeatureInfo

    def __call__(self, x: Tensor) -> list[Tensor]: ...

    def set_grad_checkpointing(self) -> None: ...


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
        body, self.indices = _features(config)
        self.body = body
        info = [body.feature_info.info[i] for i in self.indices]
        self.plain = len(info) == 1
        width, stride = info[0]["num_chs"], info[0]["reduction"]
        if self.plain:
            self.levels = nn.ModuleList([_level(width, stride, target) for target in STRIDES])
            self.channels = tuple(_width(width, stride, target) for target in STRIDES)
        else:
            self.channels = tuple(int(item["num_chs"]) for item in info)
        self.norms = nn.ModuleList([LayerNorm2d(dim) if norm else nn.Identity() for dim in self.channels])
        if config.checkpoint is not None:
            _load(cast(nn.Module, body), config.checkpoint)
        if config.grad_checkpointing:
            body.set_grad_checkpointing()

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.body(x)
        maps = [maps[i] for i in self.indices]
        if self.plain:
            maps = [level(maps[0]) for level in self.levels]
        return [norm(x) for norm, x in zip(self.norms, maps, strict=True)]


def _features(config: DenseModel) -> tuple[Body, list[int]]:
    """A model that gives maps, and which of them to take."""
    kwargs: dict[str, object] = {**config.args}
    if config.drop_path:
        kwargs["drop_path_rate"] = config.drop_path
    if config.name in VARIANTS:
        model = cast(VisionModel, create(config.name, {**kwargs, "num_classes": 0}, config.pretrained))
        if model.num_stages == 1:
            return FeatureNet(model, (len(model.feature_info) - 1,)), [0]
        return FeatureNet(model, model.default_features), list(range(len(STRIDES)))
    create(config.name, {})  # raises for an unknown name
    if config.checkpoint is not None:
        raise InputError(f"model.checkpoint: {config.name} is timm's; take its weights with --model.pretrained true")
    try:
        body: Body = timm.create_model(config.name, pretrained=config.pretrained, features_only=True, **kwargs)
    except (TypeError, RuntimeError, ValueError) as error:
        raise InputError(
            f"model.name: {config.name} gives no features ({' '.join(str(error).split())[:160]})"
        ) from error
    strides = body.feature_info.reduction()
    if not set(STRIDES) <= set(strides):
        raise InputError(f"model.name: {config.name} gives maps at strides {strides}, not at 4, 8, 16 and 32")
    return body, [len(strides) - 1 - strides[::-1].index(stride) for stride in STRIDES]


def _load(body: nn.Module, path: str) -> None:
    """Load the weights of a classifier, or of the backbone in a segmenter or detector.

    Another attention mechanism and the head keep their initial values, with a message.
    """
    weights = read_weights(path)
    state = weights.state
    inside = {INSIDE.sub("", key): value for key, value in state.items() if INSIDE.match(key)}
    if inside:
        print(f"{path}: a segmenter or detector; only its backbone is loaded, the head starts from scratch", flush=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            body.load_state_dict(inside or state)
        except MismatchError as error:
            reason = " ".join(str(error).split())[:300]
            raise FileError(f"{path}: {reason}; give the model.name and model.args of these weights") from error
        except (RuntimeError, ValueError) as error:
            raise FileError(f"{path}: {' '.join(str(error).split())[:300]}") from error
    check_recorded(weights, body)
    for warning in caught:
        if "attention mechanism" in str(warning.message):
            print(f"{path}: {warning.message}", flush=True)


def _width(width: int, stride: int, target: int) -> int:
    return max(width * target // stride, 8) if target < stride else width


def _level(width: int, stride: int, target: int) -> nn.Module:
    """From the map of a plain transformer to one at stride `target`."""
    steps = math.log2(stride / target)
    if steps != int(steps):
        raise InputError(f"model.args: patches of {stride} pixels; give a power of two for maps at strides 4 to 32")
    if steps < 0:
        return nn.MaxPool2d(2 ** int(-steps))
    layers: list[nn.Module] = []
    now = width
    for step in range(int(steps)):
        after = max(width // 2 ** (step + 1), 8)
        layers += [nn.ConvTranspose2d(now, after, 2, 2)]
        if step + 1 < int(steps):
            layers += [LayerNorm2d(after), nn.GELU()]
        now = after
    return nn.Sequential(*layers)


class WithBackbone(nn.Module):
    """What timm's optimizer factory needs from a model with a `Backbone`."""

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Position tables and class tokens; parameters of one dimension are exempt anyway."""
        parts = ("pos_embed", "cls_token", "position_bias", "relative_position")
        return {name for name, _ in self.named_parameters() if any(part in name for part in parts)}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> Groups:
        """Layers of the backbone for layer-wise learning rates; the head is the last layer."""
        name, backbone = next((n, m) for n, m in self.named_modules() if isinstance(m, Backbone))
        inner = getattr(backbone.body, "model", None)
        if inner is None:
            raise InputError("optim.layer_decay: not for backbones of timm; leave it out")
        start = rf"^{name.replace('.', chr(92) + '.')}\.body\.model\."
        return _prefixed(inner.group_matcher(coarse), start)


def _prefixed(groups: Groups, start: str) -> Groups:
    if isinstance(groups, str):
        return groups.replace("^", start)
    if isinstance(groups, Mapping):
        return {key: _prefixed(value, start) for key, value in groups.items()}
    return [(_prefixed(cast(str, pattern), start), order) for pattern, order in groups]
