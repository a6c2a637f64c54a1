"""A linear layer and its activation as one matrix product, for inference in half precision on a GPU.

cuBLASLt applies the activation before it writes the product; torch and its compiler write the product, read it back and
write again.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from sightline import backend as backends
from sightline.ops.checks import is_exporting

LIBRARY = torch.library.Library("sightline", "FRAGMENT")
LIBRARY.define("activated_linear(Tensor x, Tensor weight, Tensor bias, bool gelu) -> Tensor")


def activated_linear(x: Tensor, weight: Tensor, bias: Tensor, *, gelu: bool) -> Tensor:
    """gelu(x W^T + b) with the tanh approximation, or relu.

    Args:
        x: (..., channels).
        weight, bias: (features, channels) and (features,).
        gelu: GELU or ReLU.

    Returns:
        (..., features). One product if nothing needs a gradient; its GELU is exact to half precision.
    """
    if backends.activated_linear(x, weight, bias):
        if is_exporting():  # where the graph runs, our operator may not be known
            return _fused(x, weight, bias, gelu)
        return torch.ops.sightline.activated_linear(x, weight, bias, gelu)
    return _unfused(x, weight, bias, gelu)


def _unfused(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
    product = F.linear(x, weight, bias)
    return F.gelu(product, approximate="tanh") if gelu else F.relu(product)


def _fused(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor:
    out = torch._addmm_activation(bias, x.reshape(-1, x.shape[-1]), weight.t(), use_gelu=gelu)
    return out.view(*x.shape[:-1], weight.shape[0])


LIBRARY.impl("activated_linear", _fused, "CUDA")
LIBRARY.impl("activated_linear", _unfused, "CPU")


@torch.library.register_fake("sightline::activated_linear", lib=LIBRARY)
def _(x, weight, bias, gelu):  # type: ignore[no-untyped-def]
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@register_flop_formula(torch.ops.sightline.activated_linear)
def _(x, weight, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    total = 2 * weight[0]
    for size in x:
        total *= size
    return total
