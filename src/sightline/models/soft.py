"""SOFT and SOFT++: Gaussian attention through landmarks in three stages, softmax with a class token in the last.

Published: Softmax-free Linear Transformers (NeurIPS 2021; IJCV 2024). `soft_norm_*` is SOFT++.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import PostNormBlock
from sightline.layers.patch import ConvBNEmbed
from sightline.layers.pattern import Pattern
from sightline.layers.spec import Spec
from sightline.models.pyramid import Pyramid


class Soft(Pyramid):
    """Four stages on a convolutional stem. `forward_features` returns tokens, the class token first.

    Args:
        common: arguments of `Pyramid`.
    """

    family = "soft"
    first_conv = "stages.0.embed.proj.0"
    pools = ("token", "avg", "max", "")
    output_fmt = "NLC"
    has_positions = True
    has_class_token = True
    norm_eps = 1e-6

    def __init__(
        self,
        attention: Pattern = "soft,soft,soft,softmax",
        embed_dims: int | Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        depths: Sequence[int] = (1, 2, 3, 2),
        mlp_ratio: float = 4.0,
        global_pool: str = "token",
        **common: Any,
    ) -> None:
        ratios = (mlp_ratio,) * 4
        super().__init__(attention, embed_dims, num_heads, depths, ratios, global_pool=global_pool, **common)

    def make_embed(self, stage: int, in_dim: int, dim: int) -> nn.Module:
        return ConvBNEmbed(in_dim, [dim], [2]) if stage else ConvBNEmbed(in_dim, [dim // 2, dim // 2, dim], [2, 1, 2])

    def make_attention(self, stage: int, index: int, mechanism: Spec, **options: Any) -> nn.Module:
        return Attention(mechanism=mechanism, **options)

    def make_block(self, stage: int, dim: int, attn: nn.Module, mlp_ratio: float, **drops: Any) -> nn.Module:
        if stage == 3:
            return super().make_block(stage, dim, attn, mlp_ratio, **drops)
        return PostNormBlock(dim, attn, mlp_ratio, **drops)
