"""Projections around a core: tokens in, tokens out."""

from typing import Any

from timm.layers import register_notrace_module
from torch import Tensor, nn

from sightline.layers.core import Grid, hooked
from sightline.layers.patch import pad_to_multiple, to_map, to_tokens
from sightline.layers.spec import Spec


def project(qkv: nn.Linear, num_heads: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, N, C) -> q, k, v, each (B, N, H, D): views of one packed tensor. Two parts are q = k and v."""
    parts = qkv(x).unflatten(-1, (qkv.out_features // qkv.in_features, num_heads, -1)).unbind(2)
    return parts[0], parts[-2], parts[-1]


@register_notrace_module
class Attention(nn.Module):
    """Multi-head attention by any mechanism.

    Args:
        dim: channels.
        num_heads: heads.
        mechanism: which one, with its options.
        stride: pixels a token covers along each side.
        length: for sequences instead of maps, the most tokens that there can be.
        qkv_bias: biases on the input projection.
        proj_drop: dropout on the output.
        sr_ratio: keys and values come from a map reduced by this factor (PVT).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mechanism: Spec,
        *,
        stride: int = 16,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        sr_ratio: int = 1,
        length: int | None = None,
    ) -> None:
        super().__init__()
        self.mechanism = mechanism
        if length is None:
            self.core = mechanism.build(dim, num_heads, stride)
        else:
            self.core = mechanism.build_sequence(dim, num_heads, length)
        self.qkv = nn.Linear(dim, mechanism.projections * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.sr: nn.Conv2d | None = None
        if sr_ratio > 1:
            if self.core.shared_qk:
                raise ValueError(f"{mechanism} takes its keys from the queries' tokens; leave sr_ratios at 1")
            self.sr = nn.Conv2d(dim, dim, sr_ratio, sr_ratio)
            self.sr_norm = nn.LayerNorm(dim)

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C) -> (B, N, C).

        Args:
            x: tokens; `prefix` of them, then those of `grid` = (height, width) row by row.
            key_mask: (B, N) booleans, true where the token counts.
            context: tokens that data-dependent weights are made from; x by default.
        """
        place: dict[str, Any] = {"grid": grid, "prefix": prefix, "context": x if context is None else context}
        out = None
        if self.sr is not None:
            q, k, v, local, key_grid = self._reduced(x, grid, prefix, key_mask)
            out = self.core(q, k, v, local=local, key_grid=key_grid, **place).flatten(2)
        elif key_mask is None and not hooked(self.core) and not hooked(self.qkv):
            out = self.core.from_tokens(x, self.qkv, **place)
        if out is None:
            q, k, v = project(self.qkv, self.core.num_heads, x)
            out = self.core(q, k, v, key_mask=key_mask, **place).flatten(2)
        return self.proj_drop(self.proj(out))

    def _reduced(
        self, x: Tensor, grid: Grid, prefix: int, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Grid]:
        """q on the full map, k and v on the reduced one, v on the full one for local terms, and the reduced grid."""
        assert self.sr is not None
        if prefix or key_mask is not None:
            raise ValueError("spatial reduction takes no prefix tokens and no key_mask; leave sr_ratios at 1")
        reduced, key_grid = to_tokens(self.sr(pad_to_multiple(to_map(x, grid), self.sr.stride)))
        _, k, v = project(self.qkv, self.core.num_heads, self.sr_norm(reduced))
        q, _, local = project(self.qkv, self.core.num_heads, x)
        return q, k, v, local, key_grid
