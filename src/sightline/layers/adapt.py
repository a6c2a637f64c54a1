"""Options of InLine and linear attention that help to inherit the weights of a softmax model.

Each starts as the identity, so that a model with it begins as the one without, and acts on queries and keys before the
operator, so that the same kernels run. What is off has no parameters and takes no time.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.core import Place
from sightline.ops.checks import accumulate_dtype
from sightline.ops.feature_maps import hide


class Adapt(nn.Module):
    """What happens to queries and keys before a mechanism.

    Args:
        key_norm: channels of the keys are multiplied by (variance over the tokens + 1) ** (-p / 2), one p per head,
            zero at first; p = 1 normalizes them. With `shift`, p times their mean is subtracted before.
        temperature: one factor per head, `scale`, which the mechanism applies.
        head_map: x + B silu(A x) with matrices for every head, of queries and of keys; A = 1 and B = 0 at first.
        shift: whether a shift common to all keys makes a difference to the mechanism.
    """

    def __init__(
        self, num_heads: int, head_dim: int, *, key_norm: bool, temperature: bool, head_map: bool, shift: bool
    ) -> None:
        super().__init__()
        self.key_power = nn.Parameter(torch.zeros(num_heads)) if key_norm else None
        self.log_scale = nn.Parameter(torch.zeros(num_heads)) if temperature else None
        self.query_map = HeadMap(num_heads, head_dim) if head_map else None
        self.key_map = HeadMap(num_heads, head_dim) if head_map else None
        self.shift = shift

    def forward(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """Queries (B, N, H, D) and keys (B, M, H, D) as the mechanism takes them, before their temperature."""
        if place.key_mask is not None:
            k = hide(k, place.hidden(k))  # no gradient of a parameter may come from what is there
        if self.key_power is not None:
            mean, variance = statistics(k, place)
            power = self.key_power.to(mean.dtype)[:, None]  # H 1
            if self.shift:
                k = k - (power * mean).to(k.dtype)
            k = k * torch.exp(-0.5 * power * variance.log1p()).to(k.dtype)
        if self.query_map is not None and self.key_map is not None:
            q, k = self.query_map(q), self.key_map(k)
        return q, k

    def scale(self) -> Tensor | None:
        """The factor of each head, (H, 1); None without a temperature."""
        return None if self.log_scale is None else self.log_scale.exp()[:, None]


class HeadMap(nn.Module):
    """x + B silu(A x) for x (B, N, H, D), matrices (H, D, D); the identity at first."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1))
        self.outer = nn.Parameter(torch.zeros(num_heads, head_dim, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(torch.einsum("bnhd,hed->bnhe", x, self.inner.to(x.dtype)))
        return x + torch.einsum("bnhd,hed->bnhe", hidden, self.outer.to(x.dtype))


def statistics(k: Tensor, place: Place) -> tuple[Tensor, Tensor]:
    """Mean and variance (B, 1, H, D) of the keys that count, in float32 or wider; zero if none does."""
    wide, hidden = k.to(accumulate_dtype(k.dtype)), place.hidden(k)
    number = place.counts(k).sum(1).clamp(min=1)[:, None, None, None]
    mean = hide(wide, hidden).sum(1, keepdim=True) / number
    return mean, hide(wide - mean, hidden).square().sum(1, keepdim=True) / number
