"""InLine-DeiT and linear vision transformers: blocks of one width on patches and leading tokens.

Published: Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). With softmax in every block
it is DeiT (2021), and with further arguments, which are named as in timm, any plain vision transformer: ViT, DeiT-III,
the towers of CLIP and SigLIP, DINOv2 with registers. `sightline.linearize` turns timm's models into this one.
"""

from collections.abc import Collection, Sequence
from functools import partial

import torch
from timm.layers import AttentionPoolLatent, RmsNorm, SwiGLUPacked, get_act_layer, trunc_normal_
from torch import Tensor, nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import GeluMlp, PreNormBlock
from sightline.layers.core import Grid
from sightline.layers.patch import PatchEmbed
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.position import PositionTable
from sightline.layers.run_blocks import run_blocks
from sightline.models.base import LayerGroups, Size, Tokens, VisionModel, check_choice
from sightline.models.pyramid import drop_path_rates, stage_grid, stage_values
from sightline.ops.inline.product import mean_token
from sightline.util.errors import InputError

NORMS = {"layernorm": nn.LayerNorm, "rmsnorm": RmsNorm}
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu")


class DeiT(VisionModel):
    """Leading tokens and patch tokens through blocks of one width.

    Args:
        img_size: pixels, one number or (height, width); sets the size of the position table only.
        patch_size: pixels along a patch.
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dims, num_heads, depths: width, heads and number of blocks.
        global_pool: "token" (the class token), "avg", "max", "avgmax", "map" (attention of a learned query) or "".
        qk_norm: norms of queries and keys in every head.
        init_values: of layer scale; none by default.
        class_token, distilled, reg_tokens: leading tokens: a class token, one of distillation, which the classifier
            takes next to it, and registers.
        pos_embed: "learn", or "none".
        no_embed_class: the leading tokens have no positions.
        pre_norm, final_norm, fc_norm: norms before the blocks, after them, and after pooling instead.
        pool_include_prefix: pool over the leading tokens too.
        norm_layer, norm_eps: "layernorm" or "rmsnorm", and its epsilon.
        act_layer: "gelu", "gelu_tanh", "quick_gelu", "silu" or "relu".
        swiglu_mlp: gated MLPs of SiLU, whose two halves make up `mlp_ratio`.
    """

    family = "deit"
    first_conv = "patch_embed.proj"
    final_stride = 16
    num_stages = 1
    body = "blocks"
    default_features = 3
    pools = ("token", "avg", "max", "avgmax", "map", "")
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
        qk_norm: bool = False,
        proj_bias: bool = True,
        init_values: float | None = None,
        class_token: bool = True,
        distilled: bool = False,
        reg_tokens: int = 0,
        pos_embed: str = "learn",
        no_embed_class: bool = False,
        pre_norm: bool = False,
        final_norm: bool = True,
        fc_norm: bool = False,
        pool_include_prefix: bool = False,
        norm_layer: str = "layernorm",
        norm_eps: float = 1e-6,
        act_layer: str = "gelu",
        swiglu_mlp: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        (dim,), (heads,) = stage_values("embed_dims", embed_dims, 1), stage_values("num_heads", num_heads, 1)
        (depth,) = stage_values("depths", depths, 1)
        if global_pool == "token" and not class_token:
            raise InputError("global_pool='token': there is no class token; give 'avg', or class_token=True")
        if distilled and global_pool != "token":
            raise InputError(f"distilled=True: the classifier takes two tokens; global_pool={global_pool!r} takes none")
        self.stem_stride, self.pooled_tokens = patch_size, 2 if distilled else 1
        super().__init__(num_classes, dim, in_chans, img_size, global_pool, drop_rate)
        self.embed_dim = dim
        self.no_embed_class, self.pool_include_prefix = no_embed_class, pool_include_prefix
        norm = partial(NORMS[check_choice("norm_layer", norm_layer, tuple(NORMS))], eps=norm_eps)
        check_choice("act_layer", act_layer, ACTIVATIONS)
        act = nn.GELU if act_layer == "gelu" else get_act_layer(act_layer)  # timm's own does the same
        self.patch_embed = PatchEmbed(in_chans, dim, patch_size, bias=not pre_norm)
        self.cls_token = _tokens(int(class_token), dim)
        self.dist_token = _tokens(int(distilled), dim)
        self.reg_token = _tokens(reg_tokens, dim)
        self.num_prefix_tokens = int(class_token) + int(distilled) + reg_tokens
        self.pos_embed: PositionTable | None = None
        if check_choice("pos_embed", pos_embed, ("learn", "none")) == "learn":
            grid, prefix = stage_grid(self.img_size, patch_size), 0 if no_embed_class else self.num_prefix_tokens
            self.pos_embed = PositionTable(grid, dim, prefix, mode="bicubic")
        self.pos_drop = nn.Dropout(pos_drop_rate)
        self.norm_pre: nn.Module = norm(dim) if pre_norm else nn.Identity()
        (mechanisms,) = parse_pattern(attention, (depth,))
        (rates,) = drop_path_rates(drop_path_rate, (depth,))
        self.blocks = nn.ModuleList()
        for mechanism, rate in zip(mechanisms, rates, strict=True):
            attn = Attention(
                dim, heads, mechanism, stride=patch_size, qkv_bias=qkv_bias, proj_drop=proj_drop_rate,
                proj_bias=proj_bias, qk_norm=norm if qk_norm else None,
            )  # fmt: skip
            options = {"hidden_features": int(dim * mlp_ratio), "bias": proj_bias, "drop": proj_drop_rate}
            mlp = SwiGLUPacked(dim, **options) if swiglu_mlp else GeluMlp(dim, act_layer=act, **options)
            self.blocks.append(
                PreNormBlock(dim, attn, norm=norm, mlp=mlp, init_values=init_values, drop_path=rate)
            )  # fmt: skip
        self.norm: nn.Module = norm(dim) if final_norm and not fc_norm else nn.Identity()
        self.attn_pool: nn.Module | None = None
        if global_pool == "map":
            self.attn_pool = AttentionPoolLatent(
                dim, num_heads=heads, mlp_ratio=mlp_ratio, norm_layer=norm, act_layer=act
            )
        self.fc_norm: nn.Module = norm(dim) if final_norm and fc_norm else nn.Identity()
        self.feature_info = [{"num_chs": dim, "reduction": patch_size, "module": f"blocks.{i}"} for i in range(depth)]
        self.init_weights()

    def run_layers(self, x: Tensor, count: int, take: Collection[int] = ()) -> tuple[Tokens, dict[int, Tokens]]:
        x, grid = self.patch_embed(x)
        x, prefix = self.norm_pre(self.pos_drop(self._placed(x, grid))), self.num_prefix_tokens
        blocks = [self.blocks[i] for i in range(count)]
        x, outputs = run_blocks(blocks, x, grid, prefix, save_memory=self.saves_memory(), take=take)
        return (x, grid, prefix), {i: (tokens, grid, prefix) for i, tokens in outputs.items()}

    def _placed(self, x: Tensor, grid: Grid) -> Tensor:
        """Patch tokens (B, h * w, C) -> leading tokens and patches with their positions."""
        if self.pos_embed is not None and self.no_embed_class:
            x = x + self.pos_embed(grid)
        leading = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        if leading:
            x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in leading), x], 1)
        return x if self.pos_embed is None or self.no_embed_class else x + self.pos_embed(grid)

    def _finish(self, output: Tokens) -> Tensor:
        return self.norm(output[0])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool, drop and classify; `pre_logits` stops before the classifier."""
        x = self.head_drop(self.fc_norm(self._pool(x)))
        return x if pre_logits else self.head(x)

    def _pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "token" and self.dist_token is not None:
            return x[:, :2].flatten(1)
        if self.global_pool in ("token", ""):
            return x[:, 0] if self.global_pool else x
        patches = x if self.pool_include_prefix else x[:, self.num_prefix_tokens :]
        if self.attn_pool is not None:
            return self.attn_pool(patches)
        if self.global_pool == "avg":
            return mean_token(patches)
        return patches.amax(1) if self.global_pool == "max" else (patches.amax(1) + mean_token(patches)) / 2

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool == "map" and self.attn_pool is None:
            raise InputError("global_pool='map': this model was built without it; build it with global_pool='map'")
        if global_pool not in (None, "map"):
            self.attn_pool = None
        super().reset_classifier(num_classes, global_pool)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        take = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        if prune_head:
            self.fc_norm = nn.Identity()
        return take

    def grid_of(self, name: str) -> Grid:
        return stage_grid(self.img_size, self.stem_stride)

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> LayerGroups:
        """Layers from the stem to the head, for layer-wise learning rates."""
        return {
            "stem": r"^(?:cls|dist|reg)_token|^pos_embed|^patch_embed|^norm_pre",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm\.|^fc_norm|^attn_pool", (99999,))],
        }


def _tokens(count: int, dim: int) -> nn.Parameter | None:
    """`count` learned tokens (1, count, dim); None for none."""
    return nn.Parameter(trunc_normal_(torch.empty(1, count, dim), std=0.02)) if count else None
