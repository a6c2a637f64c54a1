"""Test-time training: a small network for every head learns the pairs of keys and values, O(N d^2).

ViT^3: Unlocking Test-Time Training in Vision (CVPR 2026). The network f(x) = (x V) * silu(x G) takes one step of
gradient descent on -s mean_j f(k_j) . v_j for every image, s = 1 / sqrt(d), with the columns of each gradient divided
by their norms plus one; the output is f(q) with the new matrices. It is not linear in the values, so there is no matrix
of weights that mixes them.

Options add what "Linearizing Vision Transformer with Test-Time Training" (2026) has for weights of a softmax model: a
third matrix, f(x) = (silu(x G) * (x V)) P, keys normalized over the tokens, and convolutions of queries and keys.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.adapt import statistics
from sightline.layers.conv import ChannelConv
from sightline.layers.core import Core, Grid, Place
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide

Matrices = tuple[Tensor, Tensor, Tensor | None]  # V, G and P, (H, D, D) or (B, H, D, D)


class TttCore(Core):
    """TTT. At first G is the identity and V zero, or P instead: the output depends on the values of the image alone.

    Args:
        project: a third matrix on the output of the network.
        key_norm: keys without their mean, divided by their standard deviation over the tokens (variance plus one).
        kernel: side of depthwise convolutions that are added to queries and keys, zero at first; 0 for none.
    """

    has_rows = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        project: bool = False,
        key_norm: bool = False,
        kernel: int = 0,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        one = torch.eye(self.head_dim).repeat(num_heads, 1, 1)
        self.inner_value = nn.Parameter(one.clone() if project else torch.zeros_like(one))
        self.inner_gate = nn.Parameter(one.clone())
        self.inner_project = nn.Parameter(torch.zeros_like(one)) if project else None
        self.key_norm = key_norm
        self.near_queries = ChannelConv(dim, kernel, length is not None) if kernel else None
        self.near_keys = ChannelConv(dim, kernel, length is not None) if kernel else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        with full_precision(q.device):
            queries, keys, errors = self._inputs(q, k, v, place)
            return network(queries, step(keys, errors, self._matrices(queries.dtype))).transpose(1, 2).to(v.dtype)

    def by_rows(self, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, place: Place) -> Tensor:
        """`forward` of chosen queries with the gradients that autograd finds, without rows."""
        asked, keys, errors = (t.detach() for t in self._inputs(q, k, v, place))
        with torch.enable_grad():
            wide = [
                None if m is None else m.detach().expand(len(q), -1, -1, -1).clone().requires_grad_()
                for m in self._matrices(asked.dtype)
            ]
            given = [m for m in wide if m is not None]
            loss = (network(keys, (wide[0], wide[1], wide[2])) * errors).sum()  # type: ignore[arg-type]
            found = iter(torch.autograd.grad(loss, given))
        new = [None if m is None else m.detach() - clipped(next(found)) for m in wide]
        return network(asked, (new[0], new[1], new[2])).transpose(1, 2)[:, queries]  # type: ignore[arg-type]

    def _matrices(self, dtype: torch.dtype) -> Matrices:
        project = None if self.inner_project is None else self.inner_project.to(dtype)
        return self.inner_value.to(dtype), self.inner_gate.to(dtype), project

    def _inputs(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, N, D), keys and gradients of the loss at the network's output (B, H, M, D), in float32."""
        wide, hidden = accumulate_dtype(q.dtype), place.hidden(k)
        q, k, v = q.to(wide), hide(k.to(wide), hidden), hide(v.to(wide), hidden)
        if self.near_queries is not None and self.near_keys is not None:
            same = place.key_mask is not None and place.local is None and q.shape[1] == k.shape[1]
            near = hide(q, hidden) if same else q  # queries and keys are of the same tokens
            q = q + _beside(self.near_queries, near, place.grid, place.prefix)
            k = hide(k + _beside(self.near_keys, k, place.keys, place.prefix), hidden)
        if self.key_norm:
            mean, variance = statistics(k, place)
            k = hide((k - mean) * (variance + 1).rsqrt(), hidden)
        number = place.counts(k).sum(1).clamp(min=1)[:, None, None, None]
        errors = v * -(self.head_dim**-0.5) / number
        return q.transpose(1, 2), k.transpose(1, 2), errors.transpose(1, 2)


def network(x: Tensor, matrices: Matrices) -> Tensor:
    """((x V) * silu(x G)) P of x (B, H, N, D)."""
    value, gate, project = matrices
    out = (x @ value) * F.silu(x @ gate)
    return out if project is None else out @ project


def step(k: Tensor, errors: Tensor, matrices: Matrices) -> Matrices:
    """The matrices (B, H, D, D) after one step, for keys and gradients at the network's output (B, H, M, D)."""
    value, gate, project = matrices
    values, gates, new = k @ value, k @ gate, None
    sigmoid = gates.sigmoid()
    silu = gates * sigmoid
    if project is not None:
        new = project - clipped((values * silu).mT @ errors)
        errors = errors @ project.mT
    slope = sigmoid * (1 + gates * (1 - sigmoid))
    return value - clipped(k.mT @ (errors * silu)), gate - clipped(k.mT @ (errors * values * slope)), new


def clipped(gradient: Tensor) -> Tensor:
    """A gradient (..., D, D) with each column divided by its length plus one."""
    square = gradient.square().sum(-2, keepdim=True)
    # The root of zero has no finite derivative.
    length = torch.where(square > 0, square, 1.0).sqrt().masked_fill(square == 0, 0.0)
    return gradient / (length + 1)


def _beside(conv: ChannelConv, x: Tensor, grid: Grid, prefix: int) -> Tensor:
    """The convolution of the tokens on the grid; zero for the prefix."""
    return F.pad(conv(x[:, prefix:], grid), (0, 0, 0, 0, prefix, 0))
