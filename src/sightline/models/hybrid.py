"""Convolutions and attention in one pyramid, for training from scratch on few images.

Stages open with residual blocks of 3x3 convolutions, which learn quickly from few images; blocks with attention
follow them where the map is small. The model is ours, and none of its figures is published.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import PreNormBlock
from sightline.layers.conv_blocks import ConvMlp, ConvMlpBlock
from sightline.layers.patch import ConvBNEmbed
from sightline.layers.pattern import Pattern
from sightline.layers.spec import Spec
from sightline.models.pyramid import Pyramid, stage_values
from sightline.util.errors import InputError


class Hybrid(Pyramid):
    """Four stages on a convolutional stem. No parameter depends on the image size.

    Args:
        depths: blocks with attention per stage; a stage may have none.
        conv_depths: blocks of convolutions that a stage begins with; at least one in the first stage.
        stem_stride: pixels per token in the first stage, 4 or 2.
        blur: blur feature maps before downsampling, for 12 % more multiply-adds.
        conv_mlp: a depthwise 3x3 convolution in the MLPs.
        init_values: of layer scale in the blocks with attention; None for none.
        common: arguments of `Pyramid`.
    """

    family = "hybrid"
    first_conv = "stages.0.embed.proj.0"

    def __init__(
        self,
        attention: Pattern = "inline",
        embed_dims: int | Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        depths: Sequence[int] = (0, 0, 2, 2),
        conv_depths: Sequence[int] = (3, 4, 6, 1),
        mlp_ratio: float = 4.0,
        stem_stride: int = 4,
        blur: bool = False,
        conv_mlp: bool = True,
        init_values: float | None = None,
        **common: Any,
    ) -> None:
        self.conv_depths, depths = stage_values("conv_depths", conv_depths, 4), stage_values("depths", depths, 4)
        if self.conv_depths[0] < 1 or min(map(sum, zip(self.conv_depths, depths, strict=True))) < 1:
            raise InputError(
                f"conv_depths={conv_depths}: expected 1 or more in the first stage, and in stages without attention"
            )
        if stem_stride not in (2, 4):
            raise InputError(f"stem_stride={stem_stride}: expected 4, or 2 for small images")
        self.blur, self.conv_mlp, self.init_values = blur, conv_mlp, init_values
        self.stem_stride, self.final_stride = stem_stride, 8 * stem_stride
        super().__init__(attention, embed_dims, num_heads, depths, (mlp_ratio,) * 4, **common)

    def make_embed(self, stage: int, in_dim: int, dim: int) -> nn.Module:
        if stage:
            return ConvBNEmbed(in_dim, [dim], [2], self.blur)
        half = dim // 2
        if self.stem_stride == 2:
            return ConvBNEmbed(in_dim, [half, dim], [2, 1])
        return ConvBNEmbed(in_dim, [half, half, dim], [2, 1, 2])

    def make_attention(self, stage: int, index: int, mechanism: Spec, **options: Any) -> nn.Module:
        return Attention(mechanism=mechanism, **options)

    def make_block(self, stage: int, dim: int, attn: nn.Module, mlp_ratio: float, **drops: Any) -> nn.Module:
        make, mlp = PreNormBlock, None
        if self.conv_mlp:
            make, mlp = ConvMlpBlock, ConvMlp(dim, int(dim * mlp_ratio), drops["drop"])
        return make(dim, attn, mlp_ratio, self.norm_eps, mlp=mlp, init_values=self.init_values, **drops)
