"""InLine-DeiT: a plain vision transformer with a class token.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax in every block
it is DeiT (2021).
"""

from collections.abc import Collection, Sequence

import torch
from timm.layers import trunc_normal_
from timm.models import checkpoint
from torch import Tensor, nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import PreNormBlock
from sightline.layers.core import Grid
from sightline.layers.patch import PatchEmbed
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.position import PositionTable
from sightline.models.base import LayerGroups, Size, Tokens, VisionModel
from sightline.models.pyramid import drop_path_rates, stage_grid, stage_values


class DeiT(VisionModel):
    """A class token and patch tokens through blocks of one width.

    Args:
        img_size: pixels, one number or (height, width); sets the size of the position table only.
        patch_size: pixels along a patch.
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dims, num_heads, depths: width, heads and number of blocks.
        global_pool: "token" (the class token), "avg", "max" or "".
    """

    family = "deit"
    first_conv = "patch_embed.proj"
    final_stride = 16
    num_stages = 1
    body = "blocks"
    default_features = 3
    pools = ("token", "avg", "max", "")
    formats = ("NCHW", "NHWC", "NLC")

    def __init__(
        self,
        img_size: Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        attention: Pattern = "inline",
        embed_dims: int | Sequence[int] = 192,
        num_heads: int | Sequence[int] = 6,
        depths: int | Sequence[int] = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        (dim,), (heads,) = stage_values("embed_dims", embed_dims, 1), stage_values("num_heads", num_heads, 1)
        (depth,) = stage_values("depths", depths, 1)
        self.stem_stride = patch_size
        super().__init__(num_classes, dim, in_chans, img_size, global_pool, drop_rate)
        self.num_prefix_tokens = 1
        self.embed_dim = dim
        self.patch_embed = PatchEmbed(in_chans, dim, patch_size)
        self.cls_token = nn.Parameter(trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        self.pos_embed = PositionTable(stage_grid(self.img_size, patch_size), dim, prefix=1, mode="bicubic")
        self.pos_drop = nn.Dropout(pos_drop_rate)
        (mechanisms,) = parse_pattern(attention, (depth,))
        (rates,) = drop_path_rates(drop_path_rate, (depth,))
        self.blocks = nn.ModuleList(
            [
                PreNormBlock(
                    dim,
                    Attention(dim, heads, mechanism, stride=patch_size, qkv_bias=qkv_bias, proj_drop=proj_drop_rate),
                    mlp_ratio,
                    drop=proj_drop_rate,
                    drop_path=rate,
                )
                for mechanism, rate in zip(mechanisms, rates, strict=True)
            ]
        )
        self.norm: nn.Module = nn.LayerNorm(dim, 1e-6)
        self.feature_info = [{"num_chs": dim, "reduction": patch_size, "module": f"blocks.{i}"} for i in range(depth)]
        self.init_weights()

    def run_layers(self, x: Tensor, count: int, take: Collection[int] = ()) -> tuple[Tokens, dict[int, Tokens]]:
        x, grid = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        x = self.pos_drop(x + self.pos_embed(grid))
        outputs: dict[int, Tokens] = {}
        for i in range(count):
            x = checkpoint(self.blocks[i], x, grid, 1) if self.save_memory else self.blocks[i](x, grid, 1)
            if i in take:
                outputs[i] = (x, grid, 1)
        return (x, grid, 1), outputs

    def grid_of(self, name: str) -> Grid:
        return stage_grid(self.img_size, self.stem_stride)

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> LayerGroups:
        """Layers from the stem to the head, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|^pos_embed|^patch_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }
