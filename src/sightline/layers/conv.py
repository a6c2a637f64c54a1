"""Depthwise convolutions of tokens with weights that all images share."""

import torch.nn.functional as F
from torch import Tensor, nn

from sightline.ops.checks import Grid


def depthwise_conv(v: Tensor, weight: Tensor, bias: Tensor | None, grid: Grid) -> Tensor:
    """(B, h * w, H, D) with weight (C, 1, k, k), or (C, 1, 1, k) for one row -> (B, h * w, H, D), zero padded.

    It goes through a channels-last map.
    """
    batch, tokens, heads, dim = v.shape
    maps = v.reshape(batch, *grid, heads * dim).permute(0, 3, 1, 2)
    out = F.conv2d(maps, weight, bias, padding=(weight.shape[-2] // 2, weight.shape[-1] // 2), groups=heads * dim)
    return out.permute(0, 2, 3, 1).reshape(batch, tokens, heads, dim)


def add_neighbours(
    out: Tensor,
    conv: nn.Module | None,
    v: Tensor,
    *,
    grid: Grid,
    prefix: int,
    key_mask: Tensor | None,
    local: Tensor | None,
) -> Tensor:
    """out (B, N, H, D) plus `conv` of the values at the places of the grid; prefix tokens have no neighbours.

    `v`, `local` and the other keywords are those of `Core.forward`; a masked token is no neighbour.
    """
    if conv is None:
        return out
    places = (v if local is None else local)[:, prefix:]
    if key_mask is not None and local is None:
        places = places.masked_fill(~key_mask[:, prefix:, None, None], 0)
    return out + F.pad(conv(places, grid), (0, 0, 0, 0, prefix, 0))


def check_kernel(mechanism: str, kernel: int, least: int = 0) -> int:
    """The side of a convolution: odd, or 0 where a mechanism can go without."""
    if kernel < least or (kernel % 2 == 0 and kernel != 0):
        none = "" if least else ", or 0 for no convolution"
        raise ValueError(f"{mechanism}(kernel={kernel}): give an odd side such as 3{none}")
    return kernel
