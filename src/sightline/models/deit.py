"""InLine-DeiT: a plain vision transformer with a class token.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax in every block
it is DeiT (2021).
"""

from collections.abc import Sequence

import torch
from timm.layers import trunc_normal_
from timm.models import checkpoint
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import PreNormBlock
from sightline.layers.core import Grid
from sightline.layers.patch import PatchEmbed
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.position import PositionTable
from sightline.models.base import Feature, LayerGroups, Size, VisionModel, as_features, check_choice
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

    def _embed(self, x: Tensor) -> tuple[Tensor, Grid]:
        x, grid = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        return self.pos_drop(x + self.pos_embed(grid)), grid

    def _block(self, block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        if self.grad_checkpointing and not torch.jit.is_scripting():
            return checkpoint(block, x, grid, 1)
        return block(x, grid, 1)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images -> normed tokens (B, 1 + h * w, C), the class token first."""
        x, grid = self._embed(x)
        for block in self.blocks:
            x = self._block(block, x, grid)
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Feature] | tuple[Tensor, list[Feature]]:
        """The features after chosen blocks, preceded by the final features unless `intermediates_only`.

        Args:
            x: images.
            indices: blocks to take: the last n for a number, all for None.
            return_prefix_tokens: return (features, class token) pairs.
            norm: apply the final norm to every one of them.
            stop_early: skip the blocks after the last one taken.
            output_fmt: "NCHW", "NHWC" or "NLC".
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NHWC", "NLC"))
        take, last = feature_take_indices(len(self.blocks), indices)
        x, grid = self._embed(x)
        features: list[Feature] = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = self._block(block, x, grid)
            if i in take:
                tokens = self.norm(x) if norm else x
                patches = tokens[:, 1:] if output_fmt == "NLC" else as_features(tokens[:, 1:], grid, output_fmt)
                features.append((patches, tokens[:, :1]) if return_prefix_tokens else patches)
        return features if intermediates_only else (self.norm(x), features)

    def grid_of(self, name: str) -> Grid:
        return stage_grid(self.img_size, self.stem_stride)

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> LayerGroups:
        """Layers from the stem to the head, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|^pos_embed|^patch_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }
