"""InLine-PVT: a pyramid with a position table in every stage.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax and spatial
reduction in every stage it is PVT (2021) without its class token.
"""

from collections.abc import Sequence

from torch import nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import PreNormBlock
from sightline.layers.patch import PatchEmbed
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.spec import Spec
from sightline.models.base import Size
from sightline.models.pyramid import Pyramid, Stage, drop_path_rates, stage_grid, stage_values
from sightline.util.errors import InputError


def usual_reduction(stage: int, mechanism: Spec) -> int:
    """The spatial reduction of PVT: 8, 4, 2, 1 for softmax; the other mechanisms need none."""
    return 8 // 2**stage if mechanism.windowed else 1


class PVT(Pyramid):
    """Four stages of blocks on patches of 4, 8, 16 and 32 pixels.

    Args:
        img_size: pixels, one number or (height, width); sets the size of the position tables only.
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dims, num_heads, depths, mlp_ratios: one value per stage.
        sr_ratios: keys and values of a stage come from a map reduced by this factor; by default 8, 4, 2, 1 for
            softmax blocks and 1 for all others.
    """

    family = "pvt"
    first_conv = "stages.0.embed.proj"
    stem_stride = 4

    def __init__(
        self,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        attention: Pattern = "inline",
        embed_dims: Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        depths: Sequence[int] = (2, 2, 2, 2),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        sr_ratios: Sequence[int] | None = None,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        dims = stage_values("embed_dims", embed_dims, 4)
        heads = stage_values("num_heads", num_heads, 4)
        depths = stage_values("depths", depths, 4)
        ratios = stage_values("mlp_ratios", mlp_ratios, 4)
        reductions = None if sr_ratios is None else stage_values("sr_ratios", sr_ratios, 4)
        if reductions is not None and min(reductions) < 1:
            raise InputError(f"sr_ratios={reductions}: expected 1 for no reduction, or a larger whole number")
        pattern = parse_pattern(attention, depths)
        rates = drop_path_rates(drop_path_rate, depths)
        stages = []
        for i, dim in enumerate(dims):
            stride = 4 * 2**i
            blocks = [
                PreNormBlock(
                    dim,
                    Attention(
                        dim, heads[i], mechanism, stride=stride, qkv_bias=qkv_bias, proj_drop=proj_drop_rate,
                        sr_ratio=reductions[i] if reductions else usual_reduction(i, mechanism),
                    ),
                    ratios[i],
                    drop=proj_drop_rate,
                    drop_path=rate,
                )
                for mechanism, rate in zip(pattern[i], rates[i], strict=True)
            ]  # fmt: skip
            embed = PatchEmbed(dims[i - 1] if i else in_chans, dim, 2 if i else 4, norm=True)
            stages.append(Stage(embed, blocks, dim, stage_grid(img_size, stride), pos_drop=pos_drop_rate))
        super().__init__(
            stages, dims, nn.Identity(), num_classes=num_classes, in_chans=in_chans, img_size=img_size,
            global_pool=global_pool, drop_rate=drop_rate,
        )  # fmt: skip
