"""SOFT and SOFT++: Gaussian attention through landmarks in three stages, softmax with a class token in the last.

Published: Softmax-free Linear Transformers (NeurIPS 2021; IJCV 2024). `soft_norm_*` is SOFT++.
"""

from collections.abc import Sequence

from torch import nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import PostNormBlock, PreNormBlock
from sightline.layers.patch import ConvBNEmbed
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.models.base import Size
from sightline.models.pyramid import Pyramid, Stage, drop_path_rates, stage_grid, stage_values


class Soft(Pyramid):
    """Four stages on a convolutional stem. `forward_features` returns tokens, the class token first.

    Args:
        img_size: pixels, one number or (height, width); sets the size of the position tables only.
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dims, num_heads, depths: one value per stage.
        global_pool: "token" (the class token), "avg", "max" or "".
    """

    family = "soft"
    first_conv = "stages.0.embed.proj.0"
    stem_stride = 4
    pools = ("token", "avg", "max", "")
    output_fmt = "NLC"

    def __init__(
        self,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        attention: Pattern = "soft,soft,soft,softmax",
        embed_dims: Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        depths: Sequence[int] = (1, 2, 3, 2),
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        dims = stage_values("embed_dims", embed_dims, 4)
        heads = stage_values("num_heads", num_heads, 4)
        depths = stage_values("depths", depths, 4)
        pattern = parse_pattern(attention, depths)
        rates = drop_path_rates(drop_path_rate, depths)
        stages = []
        for i, dim in enumerate(dims):
            last, stride = i == 3, 4 * 2**i
            block = PreNormBlock if last else PostNormBlock
            blocks = [
                block(
                    dim,
                    Attention(dim, heads[i], mechanism, stride=stride, qkv_bias=qkv_bias, proj_drop=proj_drop_rate),
                    mlp_ratio,
                    drop=proj_drop_rate,
                    drop_path=rate,
                )
                for mechanism, rate in zip(pattern[i], rates[i], strict=True)
            ]
            embed = (
                ConvBNEmbed(dims[i - 1], [dim], [2])
                if i
                else ConvBNEmbed(in_chans, [dim // 2, dim // 2, dim], [2, 1, 2])
            )
            stages.append(Stage(embed, blocks, dim, stage_grid(img_size, stride), last, pos_drop_rate))
        super().__init__(
            stages, dims, nn.LayerNorm(dims[-1], 1e-6), num_classes=num_classes, in_chans=in_chans,
            img_size=img_size, global_pool=global_pool, drop_rate=drop_rate,
        )  # fmt: skip
