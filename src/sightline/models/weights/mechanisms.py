"""The attention mechanism of a block, read off the names and shapes of its tensors.

Mechanisms without tensors of their own (softmax, linear, none, efficient, hydra, nystromformer) cannot be told apart;
neither can two that have the same, such as SOFT and SOFT++, or linear_angular and nystromformer with its convolution.
"""

from collections.abc import Mapping

from sightline.layers.mechanisms.baselines.performer import usual_features
from sightline.layers.spec import MECHANISMS, Option, Spec

Shape = tuple[int, ...]
# A tensor that shows the width of a head, and on which axis.
HEAD_DIMS = (
    ("core.residual.fc1.weight", 1),
    ("core.landmarks.norm.weight", 0),
    ("core.feature_map.bias", 1),
    ("core.projection", 1),
    ("core.neighbours.conv.bias", 0),
)


def mechanism_of(block: Mapping[str, Shape], family: str, stride: int) -> Spec:
    """The mechanism of a block with these tensors; softmax where nothing shows, linear in Swin without a bias table."""
    core = {key.rpartition("core.")[2]: shape for key, shape in block.items() if "core." in key}
    if any(key.startswith("landmarks.") for key in core):
        return Spec("soft")
    if (rival := _rival(core, stride)) is not None:
        return rival
    options: tuple[tuple[str, Option], ...] = ()
    if any(key.startswith("feature_map.") for key in core):
        options = (("phi", "relu_affine"),)
    if any(key.startswith("residual.") for key in core):
        return Spec("inline", options)
    windowed = any("position_bias." in key for key in block)
    return Spec("linear", options) if options or (family == "swin" and not windowed) else Spec("softmax")


def head_dim_of(block: Mapping[str, Shape]) -> int | None:
    """The width of a head where a tensor of the block shows it."""
    for key, shape in block.items():
        for name, axis in HEAD_DIMS:
            if key.endswith(name) and len(shape) > axis and shape[axis] > 0:
                return shape[axis]
    return None


def _rival(core: Mapping[str, Shape], stride: int) -> Spec | None:
    """One of the mechanisms in `layers/mechanisms/baselines` by the tensors of its core."""
    if len(shape := core.get("projection", ())) == 2:
        return _spec("performer", features=0 if shape[0] == usual_features(shape[1]) else shape[0])
    if len(shape := core.get("key_table", ())) == 3:
        side = 0 if shape[1] == max(1, 224 // stride) else shape[1]
        return _spec("linformer", rank=shape[0], side=side, share="value_table" not in core)
    if len(shape := core.get("scales.0.parts.0.depthwise.weight", ())) == 4:
        scales = sum(key.endswith(".fuse.weight") for key in core)
        return _spec("enhanced", scales=scales, kernel=shape[-1])
    if len(shape := core.get("neighbours.conv.weight", ())) == 4:
        return _spec("focused" if "neighbours.conv.bias" in core else "linear_angular", kernel=shape[-1])
    return None


def _spec(name: str, **options: Option) -> Spec:
    """The mechanism with those of the options that are not the defaults."""
    usual = MECHANISMS[name].options
    return Spec(name, tuple((key, value) for key, value in options.items() if value != usual[key]))
