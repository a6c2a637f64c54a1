"""InLine-CSwin: linear mechanisms on the whole map, softmax in crossing stripes.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax in every stage
it is CSwin (2022).
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from sightline.layers.patch import PatchEmbed
from sightline.layers.pattern import Pattern
from sightline.layers.spec import Spec
from sightline.layers.stripe_attention import StripeAttention
from sightline.models.pyramid import Pyramid, stage_values
from sightline.util.errors import InputError


class CSwin(Pyramid):
    """Four stages on overlapping patches. No parameter depends on the image size.

    Args:
        stripes: width of the softmax stripes of each stage, in tokens; the last stage attends to the whole map.
        map_stripes: width of the stripes of all other mechanisms; 0 for the whole map at any resolution.
        common: arguments of `Pyramid`.
    """

    family = "cswin"
    first_conv = "stages.0.embed.proj"
    raw_context = True

    def __init__(
        self,
        attention: Pattern = "inline,inline,softmax,softmax",
        embed_dims: int | Sequence[int] = 64,
        num_heads: Sequence[int] = (2, 4, 8, 16),
        depths: Sequence[int] = (2, 4, 18, 1),
        stripes: Sequence[int] = (1, 2, 7, 7),
        map_stripes: Sequence[int] = (0, 0, 0, 0),
        mlp_ratio: float = 4.0,
        **common: Any,
    ) -> None:
        self.stripes, self.map_stripes = (
            stage_values("stripes", stripes, 4),
            stage_values("map_stripes", map_stripes, 4),
        )
        if min(self.stripes) < 1 or min(self.map_stripes) < 0:
            raise InputError(
                f"stripes={self.stripes}, map_stripes={self.map_stripes}: expected positive widths in tokens "
                f"(0 for the whole map in map_stripes)"
            )
        super().__init__(attention, embed_dims, num_heads, depths, (mlp_ratio,) * 4, **common)

    def make_embed(self, stage: int, in_dim: int, dim: int) -> nn.Module:
        stride, kernel, padding = (2, 3, 1) if stage else (4, 7, 2)
        return PatchEmbed(in_dim, dim, stride, kernel, padding, norm=True)

    def make_attention(self, stage: int, index: int, mechanism: Spec, **options: Any) -> nn.Module:
        widths = self.stripes if mechanism.windowed else self.map_stripes
        return StripeAttention(mechanism=mechanism, stripe=widths[stage] if stage < 3 else 0, **options)
