"""InLine-CSwin: linear mechanisms on the whole map, softmax in crossing stripes.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax in every stage
it is CSwin (2022).
"""

from collections.abc import Sequence

from torch import nn

from sightline.layers.blocks import PreNormBlock
from sightline.layers.patch import ConvEmbed
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.stripe_attention import StripeAttention
from sightline.models.base import Size
from sightline.models.pyramid import Pyramid, Stage, drop_path_rates, stage_dims, stage_values
from sightline.util.errors import InputError


class CSwin(Pyramid):
    """Four stages on overlapping patches.

    Args:
        img_size: pixels, one number or (height, width); no parameter depends on it.
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dims: width of the first stage, doubled from stage to stage, or one value per stage.
        num_heads, depths: one value per stage.
        stripes: width of the softmax stripes of each stage, in tokens; the last stage attends to the whole map.
        map_stripes: width of the stripes of all other mechanisms; 0 for the whole map at any resolution.
    """

    family = "cswin"
    first_conv = "stages.0.embed.proj"
    stem_stride = 4

    def __init__(
        self,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        attention: Pattern = "inline,inline,softmax,softmax",
        embed_dims: int | Sequence[int] = 64,
        num_heads: Sequence[int] = (2, 4, 8, 16),
        depths: Sequence[int] = (2, 4, 18, 1),
        stripes: Sequence[int] = (1, 2, 7, 7),
        map_stripes: Sequence[int] = (0, 0, 0, 0),
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        dims = stage_dims(embed_dims, 4)
        heads = stage_values("num_heads", num_heads, 4)
        depths = stage_values("depths", depths, 4)
        widths = {
            True: stage_values("stripes", stripes, 4),
            False: stage_values("map_stripes", map_stripes, 4),
        }
        if min(widths[True]) < 1 or min(widths[False]) < 0:
            raise InputError(
                f"stripes={widths[True]}, map_stripes={widths[False]}: expected positive widths in tokens "
                f"(0 for the whole map in map_stripes)"
            )
        pattern = parse_pattern(attention, depths)
        rates = drop_path_rates(drop_path_rate, depths)
        stages = []
        for i, dim in enumerate(dims):
            blocks = [
                PreNormBlock(
                    dim,
                    StripeAttention(
                        dim, heads[i], mechanism, stripe=widths[mechanism.windowed][i] if i < 3 else 0,
                        stride=4 * 2**i, qkv_bias=qkv_bias, proj_drop=proj_drop_rate,
                    ),
                    mlp_ratio,
                    eps=1e-5,
                    drop=proj_drop_rate,
                    drop_path=rate,
                    raw_context=True,
                )
                for mechanism, rate in zip(pattern[i], rates[i], strict=True)
            ]  # fmt: skip
            embed = ConvEmbed(dims[i - 1], dim, 3, 2, 1) if i else ConvEmbed(in_chans, dim, 7, 4, 2)
            stages.append(Stage(embed, blocks, dim, pos_drop=0.0 if i else pos_drop_rate))
        super().__init__(
            stages, dims, nn.LayerNorm(dims[-1]), num_classes=num_classes, in_chans=in_chans, img_size=img_size,
            global_pool=global_pool, drop_rate=drop_rate,
        )  # fmt: skip
