"""The architecture behind a state dict, read off the names and shapes of its tensors.

Shapes do not tell everything: mechanisms without parameters of their own look alike in most families, and so do SOFT
and SOFT++. Where softmax fits it is taken, and SOFT for both kinds; see `mechanism_layout`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sightline.layers.spec import Spec
from sightline.models.base import VisionModel
from sightline.models.weights.mechanisms import head_dim_of, mechanism_of
from sightline.models.weights.reader import CheckpointError, State, some

Shape = tuple[int, ...]
Block = dict[str, Shape]  # the tensors of a block by their names inside it

MAX_BLOCKS = 1000  # in a stage; published models have at most 49
BLOCK_KEY = re.compile(r"^(?:stages\.(\d{1,9})\.)?blocks\.(\d{1,9})\.(.+)$")


@dataclass(frozen=True)
class Layout:
    """What shapes tell: one value a stage, or a block of a stage; None where nothing shows it."""

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


def observe(state: State, cls: type[VisionModel]) -> Layout:
    """The layout of a state dict in the native form of the family `cls`.

    Raises:
        CheckpointError: a tensor that is needed to tell is missing, or blocks are not numbered 0, 1, 2, ...
    """
    shapes: Block = {key: tuple(value.shape) for key, value in state.items()}
    stages = _stages(shapes, cls.num_stages)
    dims = tuple(_first(blocks, ("norm1.weight", "norm2.weight", "attn.proj.bias"), 0) for blocks in stages)
    hidden = [_first(blocks, ("mlp.fc1.weight", "mlp.fc1.bias"), 0) for blocks in stages]
    conv = f"{cls.first_conv}.weight"
    patch = _axis(shapes, conv, 2)
    return Layout(
        embed_dims=dims,
        depths=tuple(len(blocks) for blocks in stages),
        num_heads=tuple(_heads(blocks, dim) for blocks, dim in zip(stages, dims, strict=True)),
        attention=tuple(
            tuple(mechanism_of(block, cls.family, patch if len(stages) == 1 else 4 * 2**i) for block in blocks)
            for i, blocks in enumerate(stages)
        ),
        mlp_ratios=tuple(width / dim for width, dim in zip(hidden, dims, strict=True)),
        reductions=tuple(tuple(_reduction(block) for block in blocks) for blocks in stages),
        qkv_bias=any("attn.qkv.bias" in block for blocks in stages for block in blocks),
        patch_size=patch,
        in_chans=_axis(shapes, conv, 1),
        num_classes=_classes(shapes),
        img_size=_img_size(shapes, patch),
        window_size=_window(stages),
    )


def _stages(shapes: Block, count: int) -> list[list[Block]]:
    """The blocks of every stage, numbered without gaps: a forged number must not size a model."""
    found: dict[int, dict[int, Block]] = {stage: {} for stage in range(count)}
    for key, shape in shapes.items():
        if match := BLOCK_KEY.match(key):
            stage = int(match[1] or 0)
            if stage not in found:
                raise CheckpointError(f"{key}: this family has {count} stages, numbered from 0")
            found[stage].setdefault(int(match[2]), {})[match[3]] = shape
    for stage, blocks in found.items():
        if not blocks:
            raise CheckpointError(f"stage {stage} has no blocks; the checkpoint is not complete")
        gap = next(i for i in range(len(blocks) + 1) if i not in blocks)
        if gap != len(blocks):
            raise CheckpointError(
                f"blocks of stage {stage} go up to number {max(blocks)} but {gap} is missing; "
                f"the checkpoint is damaged or forged"
            )
        if len(blocks) > MAX_BLOCKS:
            raise CheckpointError(f"stage {stage} has {len(blocks)} blocks; more than {MAX_BLOCKS} are refused")
    return [[blocks[i] for i in range(len(blocks))] for blocks in found.values()]


def _axis(shapes: Mapping[str, Shape], key: str, axis: int) -> int:
    """The size along an axis of a tensor that must be there."""
    shape = shapes.get(key)
    if shape is None:
        raise CheckpointError(f"{key} is missing; the checkpoint is not complete")
    if len(shape) <= axis or not all(shape):
        raise CheckpointError(f"{key} has shape {shape}, which no model of this family has")
    return shape[axis]


def _first(blocks: Sequence[Block], keys: Sequence[str], axis: int) -> int:
    """The size along an axis of the first of `keys` that a block has."""
    for key in keys:
        for block in blocks:
            if key in block:
                return _axis(block, key, axis)
    raise CheckpointError(f"no block has any of {some(keys)}; the checkpoint is not complete")


def _heads(blocks: Sequence[Block], dim: int) -> int | None:
    for block in blocks:
        for key in block:
            if key.endswith("position_bias.table"):
                return _axis(block, key, 1)
        if (wide := head_dim_of(block)) is not None:
            return max(1, dim // wide)
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
    """Side of the windows of a bias table with (2w - 1)^2 rows."""
    for block in (block for blocks in stages for block in blocks):
        if "attn.position_bias.table" in block:
            return (math.isqrt(_axis(block, "attn.position_bias.table", 0)) + 1) // 2
    return None
