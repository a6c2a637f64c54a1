"""The architecture behind a state dict, from the names and shapes of its tensors.

Shapes do not show everything. Mechanisms without tensors of their own (softmax, linear, none, efficient, hydra,
nystromformer, mala, rala) look alike, and so do pairs with the same tensors: SOFT and SOFT++, linear_angular and
nystromformer with its convolution, or mala and rala with theirs. Softmax is assumed if it fits, SOFT for both SOFT and
SOFT++, and mala for both mala and rala. Nothing shows whether a TTT network normalizes its keys.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from sightline.layers.mechanisms.baselines.performer import usual_features
from sightline.layers.spec import MECHANISMS, Option, Spec
from sightline.models.weights.reader import State, some
from sightline.util.errors import FileError

Shape = tuple[int, ...]
Block = dict[str, Shape]  # the tensors of a block by their names inside it

WINDOWS = (("agents", 49), ("window", 7))  # the usual ones: tensors show that there are some
MAX_BLOCKS = 1000  # per stage; published models have at most 49
BLOCK_KEY = re.compile(r"^(?:stages\.(\d{1,9})\.)?blocks\.(\d{1,9})\.(.+)$")
# Tensors that show the width of a head, and on which axis.
HEAD_DIMS = (
    ("core.residual.fc1.weight", 1),
    ("core.landmarks.norm.weight", 0),
    ("core.feature_map.bias", 1),
    ("core.projection", 1),
    ("core.neighbours.conv.bias", 0),
    ("core.query_map", 1),
    ("core.inner_gate", 1),
    ("core.adapt.query_map.inner", 1),
    ("core.far.offset", 1),
)
# Tensors that show the number of heads, and on which axis; those in the branches of a block show a part of it.
HEAD_COUNTS = {"attn.position_bias.table": 1, "attn.core.adapt.key_power": 0, "attn.core.adapt.log_scale": 0}
# Tensors that show options of linear and inline.
ADAPTED = {"key_norm": "adapt.key_power", "temperature": "adapt.log_scale", "head_map": "adapt.query_map.inner"}


class Target(Protocol):
    """A model that weights are fitted to."""

    family: str
    first_conv: str
    num_stages: int
    in_chans: int
    num_classes: int

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def get_classifier(self) -> nn.Module: ...


@dataclass(frozen=True)
class Layout:
    """What shapes show: one value per stage, or per block of a stage; None if nothing shows it."""

    embed_dims: tuple[int, ...]
    depths: tuple[int, ...]
    num_heads: tuple[int | None, ...]
    attention: tuple[tuple[Spec, ...], ...]
    mlp_ratios: tuple[float, ...]
    reductions: tuple[tuple[int, ...], ...]
    qkv_bias: bool
    patch_size: int
    in_chans: int
    num_classes: int
    img_size: tuple[int, int] | None
    window_size: int | None
    conv_depths: tuple[int, ...]
    conv_mlp: bool
    stem_stride: int  # of the hybrid
    init_values: float | None  # only whether there is a layer scale


def observe(state: State, cls: type[Target]) -> Layout:
    """The layout of a state dict in the native form of the family `cls`.

    Raises:
        FileError: a tensor that is needed is missing, or blocks are not numbered 0, 1, 2, ...
    """
    shapes: Block = {key: tuple(value.shape) for key, value in state.items()}
    stages = _stages(shapes, cls.num_stages)
    dims = tuple(_width(blocks, ("norm1.weight", "norm2.weight", "attn.proj.bias")) for blocks in stages)
    conv = f"{cls.first_conv}.weight"
    patch = _axis(shapes, conv, 2)
    every = [block for blocks in stages for block in blocks]
    attended = [[block for block in blocks if not _convolves(block)] for blocks in stages]
    return Layout(
        embed_dims=dims,
        depths=tuple(len(blocks) for blocks in attended),
        num_heads=tuple(_heads(blocks, dim) for blocks, dim in zip(stages, dims, strict=True)),
        attention=tuple(
            tuple(mechanism_of(block, cls.family, patch if len(stages) == 1 else 4 * 2**i) for block in blocks)
            for i, blocks in enumerate(attended)
        ),
        mlp_ratios=_mlp_ratios(attended, dims),
        reductions=tuple(tuple(_reduction(block) for block in blocks) for blocks in attended),
        qkv_bias=any("attn.qkv.bias" in block for block in every),
        patch_size=patch,
        in_chans=_axis(shapes, conv, 1),
        num_classes=_classes(shapes),
        img_size=_img_size(shapes, patch),
        window_size=_window(stages),
        conv_depths=tuple(sum(map(_convolves, blocks)) for blocks in stages),
        conv_mlp=any("mlp.near.conv.weight" in block for block in every),
        stem_stride=4 if "stages.0.embed.proj.6.weight" in shapes else 2,
        init_values=1.0 if any("ls1.gamma" in block for block in every) else None,
    )


def _convolves(block: Block) -> bool:
    """Whether a block has convolutions instead of attention."""
    return "conv1.weight" in block


def _mlp_ratios(stages: Sequence[Sequence[Block]], dims: Sequence[int]) -> tuple[float, ...]:
    """The ratio of every stage; one without attention has that of the last stage that has some."""
    ratios = [
        _width(blocks, ("mlp.fc1.weight", "mlp.fc1.bias")) / dim if blocks else 0.0
        for blocks, dim in zip(stages, dims, strict=True)
    ]
    last = next((ratio for ratio in reversed(ratios) if ratio), 4.0)
    return tuple(ratio or last for ratio in ratios)


def mechanism_of(block: Mapping[str, Shape], family: str, stride: int) -> Spec:
    """The mechanism of a block; softmax if nothing shows it, but linear in Swin without a bias table."""
    core = {key.rpartition("core.")[2]: shape for key, shape in block.items() if "core." in key}
    if any(key.startswith("landmarks.") for key in core):
        return Spec("soft")
    if (baseline := _baseline(core, stride, block.get("norm1.weight", (0,)))) is not None:
        return baseline
    options: tuple[tuple[str, Option], ...] = tuple((name, True) for name, key in ADAPTED.items() if key in core)
    if any(key.startswith("feature_map.") for key in core):
        options = (("phi", "relu_affine"), *options)
    near: tuple[tuple[str, Option], ...] = WINDOWS if "far.scale" in core else ()
    if any(key.startswith("residual.") for key in core):
        width, hidden = ((*core.get(f"residual.fc{i}.weight", ()), 0, 0)[1] for i in (1, 2))
        return Spec("inline", (*options, *near) if hidden in (0, width) else (("hidden", hidden), *options, *near))
    if near:
        return Spec("inline", (("residual", False), *options, *near))
    windowed = any("position_bias." in key for key in block)
    return Spec("linear", options) if options or (family == "swin" and not windowed) else Spec("softmax")


def _baseline(core: Mapping[str, Shape], stride: int, dims: Shape) -> Spec | None:
    """One of `layers/mechanisms/baselines` by the tensors of its core, in a block of dims[0] channels."""
    conv = core.get("neighbours.conv.weight", ())
    kernel = conv[-1] if len(conv) == 4 else 0
    if "query_map" in core:
        return _spec("hedgehog", share="key_map" not in core, kernel=kernel)
    if "gate_weight" in core:
        return _spec("rala", gate=True, kernel=kernel)
    if "inner_gate" in core:
        near = core.get("near_keys.conv.weight", ())
        return _spec("ttt", project="inner_project" in core, kernel=near[-1] if len(near) == 4 else 0)
    if len(shape := core.get("projection", ())) == 2:
        return _spec("performer", features=0 if shape[0] == usual_features(shape[1]) else shape[0])
    if len(shape := core.get("key_table", ())) == 3:
        side = 0 if shape[1] == max(1, 224 // stride) else shape[1]
        return _spec("linformer", rank=shape[0], side=side, share="value_table" not in core)
    if len(shape := core.get("scales.0.parts.0.depthwise.weight", ())) == 4:
        scales = sum(key.endswith(".fuse.weight") for key in core)
        return _spec("enhanced", scales=scales, kernel=shape[-1])
    if kernel and conv[:1] == dims[:1]:
        return _spec("mala", kernel=kernel)
    if kernel:
        return _spec("focused" if "neighbours.conv.bias" in core else "linear_angular", kernel=kernel)
    return None


def _spec(name: str, **options: Option) -> Spec:
    """The mechanism with those options that are not the defaults."""
    usual = MECHANISMS[name].options
    return Spec(name, tuple((key, value) for key, value in options.items() if value != usual[key]))


def shown_heads(state: State) -> dict[str, int]:
    """The number of heads of every block that shows it, by the name of the block."""
    blocks: dict[str, Block] = {}
    for key, value in state.items():
        if match := BLOCK_KEY.match(key):
            blocks.setdefault(key.removesuffix(f".{match[3]}"), {})[match[3]] = tuple(value.shape)
    found = {name: _heads([block], block.get("attn.proj.weight", (0,))[0]) for name, block in blocks.items()}
    return {name: heads for name, heads in found.items() if heads is not None}


def _stages(shapes: Block, count: int) -> list[list[Block]]:
    """The blocks of every stage, numbered without gaps: a forged number must not size a model."""
    found: dict[int, dict[int, Block]] = {stage: {} for stage in range(count)}
    for key, shape in shapes.items():
        if match := BLOCK_KEY.match(key):
            blocks = found.get(int(match[1] or 0), {})  # one stage too many is reported as unexpected
            blocks.setdefault(int(match[2]), {})[match[3]] = shape
    for stage, blocks in found.items():
        if not blocks:
            raise FileError(f"stage {stage} has no blocks; the checkpoint is incomplete")
        gap = next(i for i in range(len(blocks) + 1) if i not in blocks)
        if gap != len(blocks):
            raise FileError(
                f"blocks of stage {stage} go up to number {max(blocks)} but {gap} is missing; "
                f"the checkpoint is damaged or forged"
            )
        if len(blocks) > MAX_BLOCKS:
            raise FileError(f"stage {stage} has {len(blocks)} blocks; at most {MAX_BLOCKS} are accepted")
    return [[blocks[i] for i in range(len(blocks))] for blocks in found.values()]


def _axis(shapes: Mapping[str, Shape], key: str, axis: int) -> int:
    """The size along an axis of a required tensor."""
    shape = shapes.get(key)
    if shape is None:
        raise FileError(f"{key} is missing; the checkpoint is incomplete")
    if len(shape) <= axis or not all(shape):
        raise FileError(f"{key} has shape {shape}, which no model of this family has")
    return shape[axis]


def _width(blocks: Sequence[Block], keys: Sequence[str]) -> int:
    """The channels of the first of `keys` that a block has."""
    for key in keys:
        for block in blocks:
            if key in block:
                return _axis(block, key, 0)
    raise FileError(f"no block has any of {some(keys)}; the checkpoint is incomplete")


def _heads(blocks: Sequence[Block], dim: int) -> int | None:
    """The heads of blocks of `dim` channels, if a tensor shows their number or width."""
    for block in blocks:
        for key, shape in block.items():
            if key in HEAD_COUNTS:
                return _axis(block, key, HEAD_COUNTS[key])
            for name, axis in HEAD_DIMS:
                if key.endswith(name) and len(shape) > axis and shape[axis] > 0:
                    return max(1, dim // shape[axis])
    return None


def _reduction(block: Block) -> int:
    return _axis(block, "attn.sr.weight", 2) if "attn.sr.weight" in block else 1


def _classes(shapes: Block) -> int:
    key = next((key for key in ("head.weight", "head.bias") if key in shapes), None)
    return _axis(shapes, key, 0) if key else 0


def _img_size(shapes: Block, patch: int) -> tuple[int, int] | None:
    """Pixels that the first position table covers; the tables of other stages follow from it."""
    for key, stride in (("pos_embed.weight", patch), ("stages.0.pos_embed.weight", 4)):
        if key in shapes:
            return _axis(shapes, key, 1) * stride, _axis(shapes, key, 2) * stride
    return None


def _window(stages: Sequence[Sequence[Block]]) -> int | None:
    """The side of the windows of a bias table with (2w - 1)^2 rows."""
    for block in (block for blocks in stages for block in blocks):
        if "attn.position_bias.table" in block:
            return (math.isqrt(_axis(block, "attn.position_bias.table", 0)) + 1) // 2
    return None
