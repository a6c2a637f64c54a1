"""Projections around a core: tokens in, tokens out."""

from collections.abc import Callable

import torch
from timm.layers import register_notrace_module
from torch import Tensor, nn

from sightline.layers.core import Grid, Place, changed
from sightline.layers.patch import pad_to_multiple, to_map, to_tokens
from sightline.layers.spec import Spec
from sightline.util.errors import InputError


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
        mechanism: its name with options, such as "inline" or "soft(ratio=2)"; see `sightline list --attention`.
        stride: pixels per token along each side.
        length: for sequences instead of maps, the largest number of tokens.
        qkv_bias: biases on the input projection.
        proj_drop: dropout on the output.
        sr_ratio: keys and values come from a map reduced by this factor (PVT).
        proj_bias: a bias on the output projection.
        qk_norm: makes the norms of queries and of keys, over the channels of a head; none by default.

    Example:
        >>> attention = Attention(192, 6, "inline")
        >>> attention(torch.randn(2, 14 * 14, 192), (14, 14)).shape
        torch.Size([2, 196, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mechanism: Spec | str,
        *,
        stride: int = 16,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
        sr_ratio: int = 1,
        length: int | None = None,
        proj_bias: bool = True,
        qk_norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.mechanism = Spec.parse(mechanism)
        self.core = self.mechanism.build(dim, num_heads, stride, length)
        self.reads_context = self.core.reads_context
        self.qkv = nn.Linear(dim, self.mechanism.projections * dim, bias=qkv_bias)
        self.q_norm = None if qk_norm is None else qk_norm(dim // num_heads)
        self.k_norm = None if qk_norm is None or self.core.shared_qk else qk_norm(dim // num_heads)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)
        self.sr: nn.Conv2d | None = None
        if sr_ratio > 1:
            if self.core.shared_qk:
                raise InputError(f"{self.mechanism} takes its keys from the queries' tokens; leave sr_ratios at 1")
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
            key_mask: (B, N) booleans, true for tokens that count.
            context: tokens that data-dependent weights are made from; x by default.
        """
        place = Place(grid, x if context is None else context, prefix, key_mask)
        core, qkv, proj, out = self.core, self.qkv, self.proj, None
        if self.sr is not None:
            out = self._reduced(x, place, self.sr).flatten(2)
        elif key_mask is None and self.q_norm is None and self.unchanged("core", "qkv"):
            done = core.projected(x, qkv, proj, place) if self.unchanged("proj") else None
            if done is not None:
                return self.proj_drop(done)
            out = core.from_tokens(x, qkv, place)
        if out is None:
            out = core(*self._project(x), place).flatten(2)
        return self.proj_drop(proj(out))

    def unchanged(self, *names: str) -> bool:
        """Whether calls of these modules do what their classes do."""
        return not any(changed(getattr(self, name)) for name in names)

    def joins(self) -> bool:
        """Whether `added` may be tried: a call does nothing beyond the projections, the mechanism and dropout."""
        if not self.core.joins_norm or self.sr is not None or self.q_norm is not None or changed(self):
            return False
        plain = type(self.proj_drop) in (nn.Dropout, nn.Identity)
        return plain and self.unchanged("core", "qkv", "proj", "proj_drop")

    def added(self, x: Tensor, update: Tensor | None, norm: nn.LayerNorm, grid: Grid, prefix: int) -> Tensor | None:
        """With s = x + `update`: s + attention(norm(s)), (B, N, C); None if no single operator computes it.

        Call only if `joins()`.
        """
        drop = self.proj_drop
        if type(drop) is nn.Dropout and drop.p and drop.training:
            return None
        if update is not None and (not isinstance(update, Tensor) or update.shape != x.shape):
            return None
        if update is not None and torch.promote_types(x.dtype, update.dtype) != x.dtype:
            return None  # the sum is wider than x
        return self.core.joined(x, update, norm, self.qkv, self.proj, Place(grid, x, prefix))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v with the norms that the module has."""
        q, k, v = project(self.qkv, self.core.num_heads, x)
        if self.q_norm is None:
            return q, k, v
        q = self.q_norm(q).to(v.dtype)  # autocast norms in float32
        return q, q if self.k_norm is None else self.k_norm(k).to(v.dtype), v

    def _reduced(self, x: Tensor, place: Place, sr: nn.Conv2d) -> Tensor:
        """q on the full map, k and v on the reduced one, and v on the full one for local terms."""
        if place.prefix or place.key_mask is not None:
            raise InputError("spatial reduction takes no prefix tokens and no key_mask; leave sr_ratios at 1")
        reduced, key_grid = to_tokens(sr(pad_to_multiple(to_map(x, place.grid), sr.stride)))
        _, k, v = self._project(self.sr_norm(reduced))
        q, _, local = self._project(x)
        return self.core(q, k, v, Place(place.grid, place.context, local=local, key_grid=key_grid))
