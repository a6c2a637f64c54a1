"""The one signature of all attention mechanisms.

A core mixes tokens: it takes queries, keys and values and gives the mixed values. The projections around it, windows,
stripes and spatial reduction belong to the modules that call it, so a mechanism is written once for every family.

Shape letters: B batch, N tokens, M key tokens, H heads, D head dim, C = H * D channels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sightline.layers.conv import add_neighbours
from sightline.ops.checks import Grid
from sightline.ops.feature_maps import hide

__all__ = ["Core", "Grid", "counted", "products"]


class Core(nn.Module):
    """Base of all mechanisms.

    Args:
        dim: channels C.
        num_heads: heads H.
        stride: pixels a token covers along each side; tells landmark methods how coarse the map is already.
    """

    shared_qk = False  # queries are their own keys: the projection makes q and v only, and k is q
    windowed = False  # works inside the windows, stripes or reduced maps of its family instead of the whole map

    def __init__(self, dim: int, num_heads: int, stride: int = 16) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide dim={dim}; choose heads that do")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        # A convolution of the values (B, h * w, H, D) on their grid that `forward` adds to what it mixes.
        self.neighbours: nn.Module | None = None

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        context: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        local: Tensor | None = None,
        key_grid: Grid | None = None,
    ) -> Tensor:
        """Mix the values.

        Args:
            q: (B, N, H, D).
            k, v: (B, M, H, D).
            context: (B, N, C), the block's tokens that data-dependent weights are made from.
            grid: (height, width) of the N tokens after `prefix`.
            prefix: leading tokens without a place in the grid.
            key_mask: (B, M) booleans, true where the key counts.
            local: values on the grid of the queries where k and v are on another one; v by default.
            key_grid: that other grid, of k and v; `grid` by default.

        Returns:
            (B, N, H, D).
        """
        raise NotImplementedError

    def rows(
        self,
        q: Tensor,
        k: Tensor,
        queries: Tensor,
        *,
        context: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        local: Tensor | None = None,
        key_grid: Grid | None = None,
    ) -> Tensor:
        """The weights that chosen queries give to all keys: rows of the attention matrix, O(Q M).

        `forward` is these weights applied to the values; local terms (the residual of InLine, depthwise convolutions of
        the values) come on top.

        Args:
            q, k: as in `forward`, and so are the keywords.
            queries: (Q,) places among the N tokens, prefix tokens counted.

        Returns:
            (B, H, Q, M) in the dtype of q; signed where the mechanism's weights are, zero for masked keys. A mechanism
            whose heads are not those of the projection says so and gives its own.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no rows; write them as its matrix of weights defines them"
        )

    def by_rows(self, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, **place: Any) -> Tensor:
        """`forward` for chosen queries by its definition, (B, Q, H, D): rows of weights applied to the values.

        Slow, and what a benchmark holds the mechanism against. Arguments are those of `forward` and `rows`.
        """
        rows = self.rows(q, k, queries, **place)
        values = hide(v, ~counted(place.get("key_mask"), k)[:, :, None, None])
        values = values.reshape(*v.shape[:2], rows.shape[1], -1)
        out = torch.einsum("bhqm,bmhd->bqhd", rows, values).reshape(q.shape[0], -1, *q.shape[2:])
        grid, prefix = place["grid"], place.get("prefix", 0)
        mask, local = place.get("key_mask"), place.get("local")
        zero = torch.zeros_like(q)
        return (
            out
            + add_neighbours(zero, self.neighbours, v, grid=grid, prefix=prefix, key_mask=mask, local=local)[:, queries]
        )

    def from_tokens(self, x: Tensor, qkv: nn.Linear, *, context: Tensor, grid: Grid, prefix: int = 0) -> Tensor | None:
        """The same from the tokens (B, N, C) themselves, where there is a faster way than projecting them first.

        Returns:
            (B, N, C), or None where there is no such way.
        """
        return None


def hooked(module: nn.Module) -> bool:
    """Whether somebody waits for a module to be called."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return bool(before or after or module._backward_pre_hooks or module._backward_hooks)


def products(q: Tensor, k: Tensor) -> Tensor:
    """q_i . k_j in every head, (B, Q, H, D) and (B, M, H, D) -> (B, H, Q, M)."""
    return torch.einsum("bqhd,bmhd->bhqm", q, k)


def counted(key_mask: Tensor | None, k: Tensor) -> Tensor:
    """The mask (B, M) of the keys of k (B, M, H, D), all true where there is none."""
    return k.new_ones(k.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
