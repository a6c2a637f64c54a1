"""CSwin's attention: stripes down and across the map in two branches, or the whole map in one, with its LePE."""

import torch
from timm.layers import register_notrace_module
from torch import Tensor, nn

from sightline.layers.attention import project
from sightline.layers.conv import depthwise_conv
from sightline.layers.core import Grid, Place
from sightline.layers.spec import Spec
from sightline.layers.windows import Windows
from sightline.ops.checks import is_symbolic
from sightline.util.errors import InputError


@register_notrace_module
class StripeAttention(nn.Module):
    """Attention in stripes of `stripe` tokens: half of the heads in full-height ones, half in full-width ones.

    `stripe=0` is one branch over the whole map.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mechanism: Spec | str,
        *,
        stripe: int,
        stride: int = 4,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        count = 2 if stripe else 1
        if num_heads % count:
            raise InputError(
                f"num_heads={num_heads} cannot be shared by the two directions of the stripes; choose an even number"
            )
        self.mechanism = Spec.parse(mechanism)
        width, heads = dim // count, num_heads // count
        branches = [Branch(width, heads, self.mechanism, stripe, bool(i), stride) for i in range(count)]
        self.branches = nn.ModuleList(branches)
        self.reads_context = branches[0].core.reads_context
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, self.mechanism.projections * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """(B, N, C) -> (B, N, C); data-dependent weights are made from `context`, x by default."""
        if prefix or key_mask is not None:
            raise InputError("stripe attention takes no prefix tokens and no key_mask")
        count = len(self.branches)
        contexts = (x if context is None else context).chunk(count, -1)
        heads = [part.chunk(count, 2) for part in project(self.qkv, self.num_heads, x)]
        out = [branch(*(h[i] for h in heads), contexts[i], grid) for i, branch in enumerate(self.branches)]
        return self.proj_drop(self.proj(out[0] if count == 1 else torch.cat(out, -1)))


class Branch(nn.Module):
    """One direction: the core inside its stripes, plus the LePE, a static 3x3 convolution of the stripe's values."""

    def __init__(self, dim: int, num_heads: int, mechanism: Spec, stripe: int, across: bool, stride: int) -> None:
        super().__init__()
        self.stripe = stripe
        self.across = across
        self.core = mechanism.build(dim, num_heads, stride)
        self.lepe = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Tensor, grid: Grid) -> Tensor:
        """q, k, v (B, N, H, D) and context (B, N, C) -> (B, N, C)."""
        if not self.stripe:
            return self._mix(q, k, v, Place(grid, context))
        length = grid[0] if self.across else grid[1]
        side = self.stripe if is_symbolic(length) else min(self.stripe, length)  # a wider stripe is padded
        windows = Windows(grid, (side, grid[1]) if self.across else (grid[0], side))
        shape = q.shape[2:]
        q, k, v = (windows.cut(t.flatten(2)).unflatten(-1, shape) for t in (q, k, v))
        mask = windows.key_mask(context.shape[0], context.device)
        return windows.join(self._mix(q, k, v, Place(windows.size, windows.cut(context), key_mask=mask)))

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        lepe = depthwise_conv(place.on_grid(v), self.lepe.weight, self.lepe.bias, place.grid)
        return (self.core(q, k, v, place) + lepe).flatten(2)
