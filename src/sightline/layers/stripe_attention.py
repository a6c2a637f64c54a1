"""CSwin's attention: stripes down and across the map in two branches, or the whole map in one, with its LePE."""

from typing import Any

import torch
from timm.layers import register_notrace_module
from torch import Tensor, nn

from sightline import backend
from sightline.layers.attention import project
from sightline.layers.conv import depthwise_conv
from sightline.layers.core import Grid, Place, changed, members
from sightline.layers.mechanisms.softmax import SoftmaxCore
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
        if self._joinable(grid):
            return self.proj_drop(self.proj(self._joined(x, grid)))
        count = len(self.branches)
        contexts = (x if context is None else context).chunk(count, -1)
        heads = [part.chunk(count, 2) for part in project(self.qkv, self.num_heads, x)]
        out = [branch(*(h[i] for h in heads), contexts[i], grid) for i, branch in enumerate(members(self.branches))]
        return self.proj_drop(self.proj(out[0] if count == 1 else torch.cat(out, -1)))

    def _joinable(self, grid: Grid) -> bool:
        """Whether both directions have stripes of one shape, with softmax in them, which takes keys in any order."""
        if len(self.branches) == 1 or is_symbolic(*grid) or not backend.joined_stripes(grid):
            return False
        return all(branch.plain_softmax() for branch in members(self.branches))

    def _joined(self, x: Tensor, grid: Grid) -> Tensor:
        """Both directions at once: stripes across a square map are stripes down the transposed one."""
        down, across = members(self.branches)
        parts = self.qkv(x).unflatten(1, grid).unflatten(-1, (3, 2, -1))
        packed = torch.stack([parts[..., 0, :], parts[..., 1, :].transpose(1, 2)], -2).flatten(1, 2).flatten(2)
        windows = Windows(grid, (grid[0], min(down.stripe, grid[1])))
        q, k, v = windows.cut(packed).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        place = Place(windows.size, x, key_mask=windows.key_mask(x.shape[0], x.device))
        weight = torch.cat([down.lepe.weight, across.lepe.weight.transpose(2, 3)])
        bias = torch.cat([down.lepe.bias, across.lepe.bias])
        mixed = down.core(q, k, v, place) + depthwise_conv(place.on_grid(v), weight, bias, windows.size)
        one, other = windows.join(mixed.flatten(2)).unflatten(1, grid).chunk(2, -1)
        return torch.cat([one, other.transpose(1, 2)], -1).flatten(1, 2)


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

    def plain_softmax(self) -> bool:
        """Whether a call does softmax and the LePE and nothing else."""
        core = self.core
        if not isinstance(core, SoftmaxCore) or changed(self) or changed(core):
            return False
        forward: Any = core.forward
        return forward.__func__ is SoftmaxCore.forward  # with type(core), torch.compile would check more at every call

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        lepe = depthwise_conv(place.on_grid(v), self.lepe.weight, self.lepe.bias, place.grid)
        return (self.core(q, k, v, place) + lepe).flatten(2)
