"""InLine-Swin: linear mechanisms on the whole map, softmax in shifted windows.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax in every stage
it is Swin (2021).
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from sightline.layers.patch import PatchEmbed, PatchMerge
from sightline.layers.pattern import Pattern
from sightline.layers.spec import Spec
from sightline.layers.window_attention import WindowAttention
from sightline.models.base import Size
from sightline.models.pyramid import Pyramid
from sightline.models.weights.description import update_arguments
from sightline.util.errors import InputError


class Swin(Pyramid):
    """Four stages; every second block of a stage shifts its windows. No parameter depends on the image size.

    Args:
        window_size: side of the softmax windows, in tokens; sets the size of their bias tables.
        map_window: side of the windows of all other mechanisms; 0 for the whole map at any resolution.
        common: arguments of `Pyramid`.
    """

    family = "swin"
    first_conv = "stages.0.embed.proj"

    def __init__(
        self,
        attention: Pattern = "inline,inline,inline,softmax",
        embed_dims: int | Sequence[int] = 96,
        num_heads: Sequence[int] = (3, 6, 12, 24),
        depths: Sequence[int] = (2, 2, 6, 2),
        window_size: int = 7,
        map_window: int = 0,
        mlp_ratio: float = 4.0,
        **common: Any,
    ) -> None:
        if window_size < 1 or map_window < 0:
            raise InputError(
                f"window_size={window_size}, map_window={map_window}: expected a positive side in tokens "
                f"(0 for the whole map in map_window)"
            )
        self.window_size, self.map_window = window_size, map_window
        super().__init__(attention, embed_dims, num_heads, depths, (mlp_ratio,) * 4, **common)

    def make_embed(self, stage: int, in_dim: int, dim: int) -> nn.Module:
        return PatchMerge(in_dim, dim) if stage else PatchEmbed(in_dim, dim, 4, norm=True)

    def make_attention(self, stage: int, index: int, mechanism: Spec, **options: Any) -> nn.Module:
        window = self.window_size if mechanism.windowed else self.map_window
        return WindowAttention(mechanism=mechanism, window=window, shift=bool(index % 2), **options)

    def set_input_size(
        self, img_size: Size | None = None, patch_size: Size | None = None, window_size: Size | None = None
    ) -> None:
        """Set another image size, and another side of the softmax windows, whose bias tables are resampled."""
        side = 0
        if window_size is not None:
            side, other = (window_size, window_size) if isinstance(window_size, int) else window_size
            if side != other or side < 1:
                raise InputError(f"window_size={window_size}: expected a positive side in tokens; windows are square")
        super().set_input_size(img_size, patch_size)
        if side:
            self.window_size = side
            for module in self.modules():
                if isinstance(module, WindowAttention):
                    module.set_window(side)
            update_arguments(self, window_size=side)
