"""InLine-PVT: a pyramid with a position table in every stage.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax and spatial
reduction in every stage it is PVT (2021) without its class token.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from sightline.layers.attention import Attention
from sightline.layers.patch import PatchEmbed
from sightline.layers.pattern import Pattern
from sightline.layers.spec import Spec
from sightline.models.pyramid import Pyramid, stage_values
from sightline.util.errors import InputError


def usual_reduction(stage: int, mechanism: Spec) -> int:
    """The spatial reduction of PVT: 8, 4, 2, 1 for softmax; the other mechanisms need none."""
    return 8 // 2**stage if mechanism.windowed else 1


class PVT(Pyramid):
    """Four stages of blocks on patches of 4, 8, 16 and 32 pixels.

    Args:
        mlp_ratios: one value per stage.
        sr_ratios: keys and values of a stage come from a map reduced by this factor; by default 8, 4, 2, 1 for
            softmax blocks and 1 for all others.
        common: arguments of `Pyramid`.
    """

    family = "pvt"
    first_conv = "stages.0.embed.proj"
    has_positions = True
    has_norm = False
    norm_eps = 1e-6

    def __init__(
        self,
        attention: Pattern = "inline",
        embed_dims: int | Sequence[int] = (64, 128, 320, 512),
        num_heads: Sequence[int] = (2, 4, 10, 16),
        depths: Sequence[int] = (2, 2, 2, 2),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        sr_ratios: Sequence[int] | None = None,
        **common: Any,
    ) -> None:
        self.sr_ratios = None if sr_ratios is None else stage_values("sr_ratios", sr_ratios, 4)
        if self.sr_ratios is not None and min(self.sr_ratios) < 1:
            raise InputError(f"sr_ratios={sr_ratios}: expected 1 for no reduction, or a larger whole number")
        ratios = stage_values("mlp_ratios", mlp_ratios, 4)
        super().__init__(attention, embed_dims, num_heads, depths, ratios, **common)

    def make_embed(self, stage: int, in_dim: int, dim: int) -> nn.Module:
        return PatchEmbed(in_dim, dim, 2 if stage else 4, norm=True)

    def make_attention(self, stage: int, index: int, mechanism: Spec, **options: Any) -> nn.Module:
        ratio = self.sr_ratios[stage] if self.sr_ratios else usual_reduction(stage, mechanism)
        return Attention(mechanism=mechanism, sr_ratio=ratio, **options)
