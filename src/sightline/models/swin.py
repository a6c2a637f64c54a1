"""InLine-Swin: linear mechanisms on the whole map, softmax in shifted windows.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax in every stage
it is Swin (2021).
"""

from collections.abc import Sequence

from torch import nn

from sightline.layers.blocks import PreNormBlock
from sightline.layers.patch import PatchEmbed, PatchMerge
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.window_attention import WindowAttention
from sightline.models.base import Size
from sightline.models.pyramid import Pyramid, Stage, drop_path_rates, stage_dims, stage_values
from sightline.util.errors import InputError


class Swin(Pyramid):
    """Four stages; every second block of a stage shifts its windows.

    Args:
        img_size: pixels, one number or (height, width); no parameter depends on it.
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dims: width of the first stage, doubled from stage to stage, or one value per stage.
        num_heads, depths: one value per stage.
        window_size: side of the softmax windows, in tokens; sets the size of their bias tables.
        map_window: side of the windows of all other mechanisms; 0 for the whole map at any resolution.
    """

    family = "swin"
    first_conv = "stages.0.embed.proj"
    stem_stride = 4

    def __init__(
        self,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        attention: Pattern = "inline,inline,inline,softmax",
        embed_dims: int | Sequence[int] = 96,
        num_heads: Sequence[int] = (3, 6, 12, 24),
        depths: Sequence[int] = (2, 2, 6, 2),
        window_size: int = 7,
        map_window: int = 0,
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
        if window_size < 1 or map_window < 0:
            raise InputError(
                f"window_size={window_size}, map_window={map_window}: expected a positive side in tokens "
                f"(0 for the whole map in map_window)"
            )
        pattern = parse_pattern(attention, depths)
        rates = drop_path_rates(drop_path_rate, depths)
        stages = []
        for i, dim in enumerate(dims):
            blocks = [
                PreNormBlock(
                    dim,
                    WindowAttention(
                        dim, heads[i], mechanism, window=window_size if mechanism.windowed else map_window,
                        shift=bool(j % 2), stride=4 * 2**i, qkv_bias=qkv_bias, proj_drop=proj_drop_rate,
                    ),
                    mlp_ratio,
                    eps=1e-5,
                    drop=proj_drop_rate,
                    drop_path=rate,
                )
                for j, (mechanism, rate) in enumerate(zip(pattern[i], rates[i], strict=True))
            ]  # fmt: skip
            embed = PatchMerge(dims[i - 1], dim) if i else PatchEmbed(in_chans, dim, 4, norm=True)
            stages.append(Stage(embed, blocks, dim, pos_drop=0.0 if i else pos_drop_rate))
        super().__init__(
            stages, dims, nn.LayerNorm(dims[-1]), num_classes=num_classes, in_chans=in_chans, img_size=img_size,
            global_pool=global_pool, drop_rate=drop_rate,
        )  # fmt: skip

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
            for module in self.modules():
                if isinstance(module, WindowAttention):
                    module.set_window(side)
