"""The interface of all attention mechanisms.

A core mixes tokens: queries, keys and values in, mixed values out. The projections around it, windows, stripes and
spatial reduction belong to the modules that call it, so a mechanism is written once for every family.

Shape letters: B batch, N tokens, M key tokens, H heads, D head dim, C = H * D channels, r columns of factors.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.feature_map import FeatureMap
from sightline.ops.checks import Grid
from sightline.ops.feature_maps import hide
from sightline.util.errors import InputError

__all__ = ["Core", "Factors", "Grid", "Place", "changed", "convolve", "hooked", "members", "products", "softmax_rows"]

Factors = tuple[Tensor, Tensor]  # L (B, H, N, r) and R (B, H, M, r) of the weights L R^T


@dataclass(frozen=True)
class Place:
    """What a mechanism needs to know about the tokens of a call.

    Args:
        grid: (height, width) of the N query tokens that follow the prefix, row by row.
        context: (B, N, C), the tokens of the block, from which data-dependent weights are made.
        prefix: leading tokens without a position on the grid.
        key_mask: (B, M) booleans, true for keys that count.
        local: (B, N, H, D), values on the grid of the queries, if k and v lie on another one.
        key_grid: that other grid; `grid` by default.
        bias: added to the scores of softmax, (H, N, M) or (B, H, N, M).
    """

    grid: Grid
    context: Tensor
    prefix: int = 0
    key_mask: Tensor | None = None
    local: Tensor | None = None
    key_grid: Grid | None = None
    bias: Tensor | None = None

    @property
    def keys(self) -> Grid:
        """The grid of the keys."""
        return self.key_grid or self.grid

    def counts(self, k: Tensor) -> Tensor:
        """The mask (B, M) of the keys k (B, M, H, D); all true without a `key_mask`."""
        return k.new_ones(k.shape[:2], dtype=torch.bool) if self.key_mask is None else self.key_mask

    def hidden(self, k: Tensor) -> Tensor:
        """The reverse of `counts`, (B, M, 1, 1)."""
        return ~self.counts(k)[:, :, None, None]

    def on_grid(self, x: Tensor) -> Tensor:
        """Tokens (B, N, H, D) without the prefix, (B, h * w, H, D); zero where masked."""
        x = x[:, self.prefix :]
        return x if self.key_mask is None else x.masked_fill(~self.key_mask[:, self.prefix :, None, None], 0)

    def local_values(self, v: Tensor) -> Tensor:
        """The values (B, h * w, H, D) on the grid of the queries, which local terms convolve."""
        return self.on_grid(v) if self.local is None else self.local[:, self.prefix :]

    def select(self, which: slice | Tensor) -> "Place":
        """The same for some of the B images or windows."""
        mask, local, bias = self.key_mask, self.local, self.bias
        return replace(
            self,
            context=self.context[which],
            key_mask=None if mask is None else mask[which],
            local=None if local is None else local[which],
            bias=bias[which] if bias is not None and bias.ndim == 4 else bias,
        )


class Core(nn.Module):
    """Base of all mechanisms.

    A mechanism defines `forward`, the fast way, and its weights: `factors` if they are a product of thin matrices, else
    `rows`. If it adds a local term to the values that the weights mix, `local_term` gives it; `gate` gives the factors
    of the sum, if there are any. A mechanism without weights says so by `has_rows` and defines `by_rows` itself.

    Args:
        dim: channels C.
        num_heads: heads H.
        stride: pixels per token along each side; tells landmark methods how coarse the map is.
        length: for sequences, which are grids of one row, the largest number of tokens; None for maps.
    """

    shared_qk = False  # queries are their own keys: the projection makes q and v only, and k is q
    windowed = False  # works inside the windows, stripes or reduced maps of its family instead of the whole map
    centred = False  # rows sum to one because the mean score is subtracted, not by division
    injective: bool | None = None  # whether keys of full rank tell any two queries apart; None if not known
    inverts = False  # has a `newton_matrix`
    joins_norm = False  # has `joined`
    has_rows = True  # is a matrix of weights that the values are mixed by

    def __init__(self, dim: int, num_heads: int, stride: int = 16, length: int | None = None) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise InputError(f"num_heads={num_heads} does not divide dim={dim}; choose a divisor")
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.feature_map: FeatureMap | None = None
        self.reads_context = False  # makes a local term from the mean of `Place.context`, with a gradient of its own
        self.neighbours: nn.Module | None = None  # a convolution of values (B, h * w, H, D) on their grid

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        """Mix values: q (B, N, H, D), k and v (B, M, H, D) -> (B, N, H, D)."""
        raise NotImplementedError

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors | None:
        """Thin matrices whose product L R^T is the attention matrix, zero for masked keys; None if there are none.

        A mechanism whose heads are not those of the projection has its own number of heads here and in `rows`.
        """
        return None

    def rows(self, q: Tensor, k: Tensor, queries: Tensor, place: Place) -> Tensor:
        """The weights that chosen queries give to all keys: rows of the attention matrix.

        Args:
            queries: (Q,) positions among the N tokens, prefix included.

        Returns:
            (B, H, Q, M), in the dtype of q or wider; signed if the weights are, zero for masked keys.

        Raises:
            InputError: the mechanism has no weights, see `has_rows`.
        """
        if not self.has_rows:
            name = type(self).__name__.removesuffix("Core").lower()
            raise InputError(f"{name} has no attention matrix, and so no rows of it; choose another mechanism or block")
        factors = self.factors(q, k, place)
        if factors is None:
            raise NotImplementedError(f"{type(self).__name__} defines neither factors nor rows")
        return factors[0][:, :, queries] @ factors[1].transpose(-1, -2)

    def local_term(self, v: Tensor, place: Place) -> Tensor | None:
        """What `forward` adds to the values that the weights mix, (B, N, H, D), zero for the prefix; or None."""
        return None if self.neighbours is None else convolve(self.neighbours, v, place)

    def gate(self, place: Place) -> Tensor | None:
        """Factors (B, N, H, D) of the mixed values and the local term together, or None."""
        return None

    def by_rows(self, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, place: Place) -> Tensor:
        """`forward` by its definition: rows of weights times the values, plus the local term. (B, Q, H, D).

        Slow; tests and benchmarks compare `forward` with it. It differs for masked queries only, which are undefined.
        """
        rows = self.rows(q, k, queries, place)
        values = hide(v, place.hidden(k)).reshape(*v.shape[:2], rows.shape[1], -1)
        out = torch.einsum("bhqm,bmhd->bqhd", rows, values).reshape(q.shape[0], -1, *q.shape[2:])
        term, gate = self.local_term(v, place), self.gate(place)
        out = out if term is None else out + term[:, queries]
        return out if gate is None else out * gate[:, queries]

    def add_local(self, out: Tensor, v: Tensor, place: Place) -> Tensor:
        """out (B, N, H, D) plus the local term."""
        term = self.local_term(v, place)
        return out if term is None else out + term

    def local_weights(self, place: Place) -> Tensor | None:
        """Weights (B, C, 3, 3) of a local term that depends on the image; None if there is none."""
        return None

    def newton_matrix(self, q: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """The matrix (B, H, m, m) that Newton's iteration inverts and the size of its first step, if `inverts`."""
        raise NotImplementedError

    def from_tokens(self, x: Tensor, qkv: nn.Linear, place: Place) -> Tensor | None:
        """`forward` from the tokens (B, N, C) themselves, if that is faster than projecting them first.

        Returns:
            (B, N, C), or None if it is not.
        """
        return None

    def projected(self, x: Tensor, qkv: nn.Linear, proj: nn.Linear, place: Place) -> Tensor | None:
        """`from_tokens` with the projection of the output as well, if one operator does all of it.

        Returns:
            (B, N, C), or None if there is no such operator for these tokens.
        """
        return None

    def joined(
        self, x: Tensor, update: Tensor | None, norm: nn.LayerNorm, qkv: nn.Linear, proj: nn.Linear, place: Place
    ) -> Tensor | None:
        """s + attention(norm(s)) with s = x + `update`, both projections included, if one operator does all of it.

        Args:
            place: of x; what it says of the context holds for the normed tokens.

        Returns:
            (B, N, C), or None if there is no such operator for these tokens.
        """
        return None


def convolve(conv: nn.Module, v: Tensor, place: Place) -> Tensor:
    """`conv` of the values at the positions of the grid, (B, N, H, D); zero for the prefix, which has no neighbors."""
    return F.pad(conv(place.local_values(v), place.grid), (0, 0, 0, 0, place.prefix, 0))


def hooked(module: nn.Module) -> bool:
    """Whether a hook expects the module to be called."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    return bool(before or after or module._backward_pre_hooks or module._backward_hooks)


def changed(module: nn.Module) -> bool:
    """Whether a call does anything other than run the `forward` of the class."""
    return hooked(module) or "forward" in module.__dict__ or module._compiled_call_impl is not None


def members(modules: nn.ModuleList | nn.Sequential) -> list[Any]:
    """The modules of a list, not by its iterator: torch 2.11 checks all of them in full before every compiled call that
    has traced one."""
    return [modules[i] for i in range(len(modules))]


def products(q: Tensor, k: Tensor) -> Tensor:
    """q_i . k_j in every head, (B, Q, H, D) and (B, M, H, D) -> (B, H, Q, M)."""
    return torch.einsum("bqhd,bmhd->bhqm", q, k)


def softmax_rows(q: Tensor, k: Tensor, place: Place, bias: Tensor | None = None) -> Tensor:
    """The weights of softmax, (B, Q, H, D) and (B, M, H, D) -> (B, H, Q, M), zero for masked keys."""
    scores = products(q, hide(k, place.hidden(k))) * q.shape[3] ** -0.5
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return scores.masked_fill(~place.counts(k)[:, None, None, :], -torch.inf).softmax(-1).nan_to_num()
