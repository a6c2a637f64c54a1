"""Depthwise convolution of the tokens' grid with one filter per head (SOFT)."""

from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import Grid, check_floating, check_grid, check_same, check_tokens, full_precision, reject
from sightline.ops.headwise_conv import reference

NAME = "headwise_conv"
if backends.TRITON_INSTALLED:
    from sightline.ops.headwise_conv import operator


def headwise_conv(
    x: Tensor, weight: Tensor, grid: Grid, *, add: Tensor | None = None, backend: str | None = None
) -> Tensor:
    """Convolve every channel of a head with the head's filter, zero padded.

    Args:
        x: (batch, height * width, heads, head_dim), any strides.
        weight: (heads, 1, k, k), k odd; of any floating-point type.
        grid: (height, width) of the tokens.
        add: added to the result, shaped like x.
        backend: "auto", "triton" or "torch"; see `sightline.backend`. The kernels take k = 3, 5, 7 and 9.

    Returns:
        (batch, height * width, heads, head_dim), in the dtype of x.

    Example:
        >>> headwise_conv(torch.randn(2, 196, 4, 32), torch.randn(4, 1, 5, 5), (14, 14)).shape
        torch.Size([2, 196, 4, 32])
    """
    check_tokens(NAME, x=x)
    check_grid(NAME, grid, x.shape[1], 0)
    check_floating(NAME, "weight", weight, x.device, "floating-point weights")
    if weight.ndim != 4 or weight.shape[:2] != (x.shape[2], 1) or weight.shape[2] != weight.shape[3]:
        reject(NAME, f"weight has shape {tuple(weight.shape)}; give (heads, 1, k, k), heads = {x.shape[2]}")
    if weight.shape[3] % 2 == 0:
        reject(NAME, f"weight has shape {tuple(weight.shape)}; give an odd k")
    if add is not None:
        check_tokens(NAME, x=x, add=add)
        check_same(NAME, 1, x=x, add=add)
        check_same(NAME, 3, x=x, add=add)
    obstacle = backends.obstacle(NAME, x, x, x, filter_size=weight.shape[3])
    if backends.choose(NAME, x.device, backend, obstacle) == "triton":
        return operator.headwise_conv(x, weight, add, grid)
    if x.numel() == 0:  # torch convolves no empty maps
        return x * weight.to(x.dtype).sum() + (0.0 if add is None else add)
    with full_precision(x.device):
        return reference.headwise_conv(x, weight, grid, add)


__all__ = ["headwise_conv"]
