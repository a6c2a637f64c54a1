"""Models in stages, each on a coarser map than the previous one: PVT, Swin, CSwin, SOFT and the hybrid."""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from sightline.layers.blocks import PreNormBlock
from sightline.layers.conv_blocks import ConvBlock
from sightline.layers.core import Grid, members
from sightline.layers.patch import to_map
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.position import PositionTable
from sightline.layers.run_blocks import run_blocks
from sightline.layers.spec import Spec
from sightline.models.base import LayerGroups, Size, Tokens, VisionModel, to_pair
from sightline.util.errors import InputError

Number = TypeVar("Number", int, float)


def stage_values(name: str, values: Number | Sequence[Number], stages: int) -> tuple[Number, ...]:
    """One value per stage, from a sequence of that length."""
    given = tuple(values) if isinstance(values, Sequence) else (values,)
    if len(given) != stages or any(isinstance(value, str) for value in given):
        raise InputError(f"{name}={values}: expected {stages} values, one per stage")
    return given


def stage_dims(dims: int | Sequence[int], stages: int) -> tuple[int, ...]:
    """The width of every stage: one number is that of the first, doubled from stage to stage."""
    return stage_values("embed_dims", [dims * 2**i for i in range(stages)] if isinstance(dims, int) else dims, stages)


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Stochastic depth rising linearly from 0 to `rate` over all blocks."""
    if not 0 <= rate < 1:
        raise InputError(f"drop_path_rate={rate}: expected a probability from 0 to below 1")
    last = max(sum(depths) - 1, 1)
    flat = iter([rate * i / last for i in range(sum(depths))])
    return [[next(flat) for _ in range(depth)] for depth in depths]


class Stage(nn.Module):
    """A coarser map as tokens, their positions, and blocks on them.

    Args:
        embed: (B, C, H, W) -> tokens (B, h * w, dim) and (h, w).
        blocks: called as block(tokens, grid, prefix).
        dim: channels.
        grid: the size of its position table; None for a stage without one.
        class_token: start the sequence with a learned token.
        pos_drop: dropout of the tokens before the first block.
    """

    def __init__(
        self,
        embed: nn.Module,
        blocks: Sequence[nn.Module],
        dim: int,
        grid: Grid | None = None,
        class_token: bool = False,
        pos_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.prefix = int(class_token)
        self.embed = embed
        self.cls_token = nn.Parameter(trunc_normal_(torch.empty(1, 1, dim), std=0.02)) if class_token else None
        self.pos_embed = None if grid is None else PositionTable(grid, dim, self.prefix)
        self.pos_drop = nn.Dropout(pos_drop)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, save_memory: bool = False) -> Tokens:
        """(B, C, H, W) -> tokens (B, prefix + h * w, dim), (h, w) and prefix."""
        x, grid = self.embed(x)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        if self.pos_embed is not None:
            x = x + self.pos_embed(grid)
        x, _ = run_blocks(members(self.blocks), self.pos_drop(x), grid, self.prefix, save_memory=save_memory)
        return x, grid, self.prefix


class Pyramid(VisionModel):
    """Base of the families with stages. `forward_features` returns (batch, height, width, channels).

    A family defines `make_embed` and `make_attention`, and `make_block` if its blocks are not plain `PreNormBlock`s.

    Args:
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dims: one value per stage, or the width of the first, doubled from stage to stage.
        num_heads, depths, mlp_ratios: one value per stage.
        img_size: pixels, one number or (height, width); sets the size of the position tables, if there are any.
        global_pool: "avg", "max" or "", and "token" (the class token) for a family that has one.
        qkv_bias: biases on the projections to queries, keys and values.
        drop_rate, pos_drop_rate, proj_drop_rate: dropout before the classifier, of the first tokens, in the blocks.
        drop_path_rate: stochastic depth of the last block.
    """

    stem_stride = 4
    output_fmt = "NHWC"
    has_positions = False  # a position table in every stage
    has_class_token = False  # in the last stage
    has_norm = True  # after the last stage
    norm_eps = 1e-5
    raw_context = False  # see `PreNormBlock`
    conv_depths: tuple[int, ...] = (0, 0, 0, 0)  # blocks of convolutions that the stages begin with

    def __init__(
        self,
        attention: Pattern,
        embed_dims: int | Sequence[int],
        num_heads: Sequence[int],
        depths: Sequence[int],
        mlp_ratios: Sequence[float],
        *,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        dims = stage_dims(embed_dims, 4)
        heads, depths = stage_values("num_heads", num_heads, 4), stage_values("depths", depths, 4)
        pattern, convs = parse_pattern(attention, depths), self.conv_depths
        rates = drop_path_rates(drop_path_rate, [sum(both) for both in zip(convs, depths, strict=True)])
        stages = []
        for i, dim in enumerate(dims):
            stride = self.stem_stride * 2**i
            blocks: list[nn.Module] = [ConvBlock(dim, rate) for rate in rates[i][: convs[i]]]
            for j, (mechanism, rate) in enumerate(zip(pattern[i], rates[i][convs[i] :], strict=True)):
                attn = self.make_attention(
                    i, j, mechanism, dim=dim, num_heads=heads[i], stride=stride, qkv_bias=qkv_bias,
                    proj_drop=proj_drop_rate,
                )  # fmt: skip
                blocks.append(self.make_block(i, dim, attn, mlp_ratios[i], drop=proj_drop_rate, drop_path=rate))
            embed = self.make_embed(i, dims[i - 1] if i else in_chans, dim)
            grid = stage_grid(img_size, stride) if self.has_positions else None
            pos_drop = pos_drop_rate if self.has_positions or i == 0 else 0.0
            stages.append(Stage(embed, blocks, dim, grid, self.has_class_token and i == 3, pos_drop))
        super().__init__(num_classes, dims[-1], in_chans, img_size, global_pool, drop_rate)
        self.num_prefix_tokens = stages[-1].prefix
        self.stages = nn.ModuleList(stages)
        self.norm = nn.LayerNorm(dims[-1], self.norm_eps) if self.has_norm else nn.Identity()
        self.feature_info = [
            {"num_chs": dim, "reduction": self.stem_stride * 2**i, "module": f"stages.{i}"}
            for i, dim in enumerate(dims)
        ]
        self.init_weights()

    def make_embed(self, stage: int, in_dim: int, dim: int) -> nn.Module:
        """The module that makes the tokens of a stage from the previous map, or from the image."""
        raise NotImplementedError

    def make_attention(self, stage: int, index: int, mechanism: Spec, **options: Any) -> nn.Module:
        """The attention of block `index` of a stage; `options` are those that every kind of attention has."""
        raise NotImplementedError

    def make_block(self, stage: int, dim: int, attn: nn.Module, mlp_ratio: float, **drops: Any) -> nn.Module:
        """A block around its attention."""
        return PreNormBlock(dim, attn, mlp_ratio, self.norm_eps, raw_context=self.raw_context, **drops)

    def run_layers(self, x: Tensor, count: int, take: Collection[int] = ()) -> tuple[Tokens, dict[int, Tokens]]:
        outputs: dict[int, Tokens] = {}
        for i in range(count):
            output = self.stages[i](x, self.saves_memory())
            if i in take:
                outputs[i] = output
            if i + 1 < count:
                x = to_map(output[0], output[1])
        return output, outputs

    def grid_of(self, name: str) -> Grid:
        stride = self.stem_stride * 2 ** int(name.split(".")[1])
        return stage_grid(self.img_size, stride)

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> LayerGroups:
        """Layers from the stem to the head, for layer-wise learning rates."""
        return {
            "stem": r"^stages\.0\.(?:embed|pos_embed|cls_token)",
            "blocks": r"^stages\.(\d+)"
            if coarse
            else [
                (r"^stages\.(\d+)\.(?:embed|pos_embed|cls_token)", (0,)),
                (r"^stages\.(\d+)\.blocks\.(\d+)", None),
                (r"^norm", (99999,)),
            ],
        }


def stage_grid(img_size: Size, stride: int) -> Grid:
    """Tokens down and across if a token covers `stride` pixels; a partial token counts as one."""
    height, width = to_pair(img_size)
    return -(-height // stride), -(-width // stride)
