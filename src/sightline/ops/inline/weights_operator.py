"""The weights of the local residual as torch operators: tokens (B, N, C) -> (B, C, 3, 3), and back.

The mean token of an image goes through two layers, each head on its own. In torch these are eight small kernels, one
after another, and twelve in backward; here they are two and two.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from sightline.ops.common.arguments import Filters
from sightline.ops.common.launching import Constants, Layout, Program, products, program_for
from sightline.ops.common.registration import LIBRARY, Context, below_autograd, implements, on_device, register_gradient
from sightline.ops.inline import weights_kernels
from sightline.ops.linear.launch import SHORT, evenly_spaced

CHUNK = 512  # tokens of a chunk, if an image is longer than SHORT
TILE = {"T": 128, "W": 64, "num_warps": 4}  # of the sum
IMAGES = 16  # images that go through the layers together

LAYERS = "Tensor w1, Tensor b1, Tensor w2, Tensor b2, int heads"
LIBRARY.define(f"local_weights(Tensor tokens, {LAYERS}, ScalarType dtype) -> (Tensor, Tensor)")
LIBRARY.define(
    f"local_weights_backward(Tensor grad, Tensor mean, {LAYERS}, SymInt tokens) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@implements("local_weights")
def _local_weights(
    tokens: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, heads: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The weights in `dtype`, and the mean token (B, C) in float32."""
    inputs = (tokens, *(t.contiguous() for t in (w1, b1, w2, b2)))
    with on_device(tokens):
        program = program_for("weights", inputs, (heads, dtype), lambda *x: _forward(*x, heads=heads, dtype=dtype))
        out, mean = program(inputs, tokens.device)
    return out.permute(0, 3, 1, 2), mean


@implements("local_weights_backward")
def _local_weights_backward(
    grad: Tensor, mean: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, heads: int, tokens: int
) -> tuple[Tensor, ...]:
    """The gradients of every token of an image (B, C) and of the parameters."""
    inputs = (evenly_spaced(grad), mean, *(t.contiguous() for t in (w1, b1, w2, b2)))
    with on_device(grad):
        program = program_for(
            "weights_backward", inputs, (heads, tokens), lambda *x: _backward(*x, heads=heads, tokens=tokens)
        )
        return tuple(program(inputs, grad.device))


def _forward(x: Layout, w1: Layout, b1: Layout, w2: Layout, b2: Layout, *, heads: int, dtype: torch.dtype) -> Program:
    images, tokens, channels = x.shape
    chunk = tokens if tokens <= SHORT else CHUNK
    parts = triton.cdiv(tokens, chunk)
    program = Program(5)
    sums = program.buffer((parts, images, channels), torch.float32)
    out = program.buffer((images, 3, 3, channels), dtype)
    mean = program.buffer((images, channels), torch.float32)
    program.results = out.slot, mean.slot
    program.launch(
        weights_kernels.sum_tokens, (triton.cdiv(channels, TILE["W"]), images, parts),
        (x, sums, *x.strides[:2], channels, tokens, chunk), TILE,
    )  # fmt: skip
    program.launch(
        weights_kernels.two_layers, (triton.cdiv(images, IMAGES), heads, 9),
        (sums, w1, b1, w2, b2, mean, out, images, tokens, parts, channels), _constants(channels // heads, dtype),
    )  # fmt: skip
    return program


def _backward(
    grad: Layout, mean: Layout, w1: Layout, b1: Layout, w2: Layout, b2: Layout, *, heads: int, tokens: int
) -> Program:
    images, channels = mean.shape
    program = Program(6)
    d_hidden = program.buffer(mean.shape, torch.float32)
    d_mean = program.buffer(mean.shape, torch.float32)
    d_w1, d_b1, d_w2, d_b2 = (program.buffer(t.shape, t.dtype) for t in (w1, b1, w2, b2))
    program.results = tuple(t.slot for t in (d_mean, d_w1, d_b1, d_w2, d_b2))
    constants = _constants(channels // heads, grad.dtype)
    program.launch(
        weights_kernels.two_layers_back, (triton.cdiv(images, IMAGES), heads),
        (Filters.of(grad), mean, w1, b1, w2, d_hidden, d_mean, images, tokens, channels), constants,
    )  # fmt: skip
    program.launch(
        weights_kernels.layer_gradients, (heads, 10),
        (Filters.of(grad), mean, d_hidden, w1, b1, d_w1, d_b1, d_w2, d_b2, images, channels), constants,
    )  # fmt: skip
    return program


def _constants(dim: int, dtype: torch.dtype) -> Constants:
    width = max(16, triton.next_power_of_2(dim))
    return {"D": dim, "W": width, "IMAGES": IMAGES, "DOT": products(dtype), "num_warps": max(2, width // 16)}


@torch.library.register_fake("sightline::local_weights", lib=LIBRARY)
def _(tokens, w1, b1, w2, b2, heads, dtype):  # type: ignore[no-untyped-def]
    images, _, channels = tokens.shape
    out = tokens.new_empty((images, 3, 3, channels), dtype=dtype).permute(0, 3, 1, 2)
    return out, tokens.new_empty((images, channels), dtype=torch.float32)


@torch.library.register_fake("sightline::local_weights_backward", lib=LIBRARY)
def _(grad, mean, w1, b1, w2, b2, heads, tokens):  # type: ignore[no-untyped-def]
    return tuple(t.new_empty(t.shape) for t in (mean, w1, b1, w2, b2))


class LocalWeights(torch.autograd.Function):
    """`local_weights` with its gradient."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> tuple[Tensor, Tensor]:
        tokens, *layers, heads, _ = inputs
        with below_autograd():
            out, mean = torch.ops.sightline.local_weights(*inputs)
        ctx.save_for_backward(mean, *layers)
        ctx.options = heads, tokens.shape[1], tokens.dtype
        ctx.mark_non_differentiable(mean)
        return out, mean

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        heads, tokens, dtype = ctx.options
        d_mean, *layers = torch.ops.sightline.local_weights_backward(grads[0], *ctx.saved_tensors, heads, tokens)
        return d_mean.to(dtype).unsqueeze(1).expand(-1, tokens, -1), *layers, None, None


register_gradient("local_weights", LocalWeights)
local_weights = torch.ops.sightline.local_weights


@register_flop_formula(torch.ops.sightline.local_weights)
def _(tokens, w1, b1, w2, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * tokens[0] * (w1[0] * w1[1] + w2[0] * w2[1])


@register_flop_formula(torch.ops.sightline.local_weights_backward)
def _(grad, mean, w1, b1, w2, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 4 * mean[0] * (w1[0] * w1[1] + w2[0] * w2[1])
