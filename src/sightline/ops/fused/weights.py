"""The weights of the local residual as a torch operator: tokens (B, N, C) -> (B, C, 3, 3).

The mean token of an image goes through two layers, each head on its own. By torch this is eight small kernels that wait
for each other; here it is two. The gradient is a handful of small products, left to torch and its compiler.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from sightline.ops.fused import weights_kernels
from sightline.ops.fused.launch import PRODUCTS, SHORT
from sightline.ops.fused.operator import LIBRARY, implements, on_device, register_gradient
from sightline.ops.fused.program import Layout, Program, program_for

CHUNK = 512  # tokens of a chunk, where an image is longer than SHORT
TILE = {"T": 64, "W": 64, "num_warps": 4}  # of the sum
IMAGES = 16  # images that go through the layers together

LIBRARY.define(
    "local_weights(Tensor tokens, Tensor w1, Tensor b1, Tensor w2, Tensor b2, int heads, ScalarType dtype) "
    "-> (Tensor, Tensor)"
)


@implements("local_weights")
def _local_weights(
    tokens: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, heads: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The weights in `dtype`, and the mean token in float32."""
    inputs = (tokens, *(t.contiguous() for t in (w1, b1, w2, b2)))
    with on_device(tokens):
        program = program_for(
            "weights", inputs, (heads, dtype), lambda *layouts: _plan(*layouts, heads=heads, dtype=dtype)
        )
        out, mean = program(inputs, tokens.device)
    return out, mean


def _plan(x: Layout, w1: Layout, b1: Layout, w2: Layout, b2: Layout, *, heads: int, dtype: torch.dtype) -> Program:
    images, tokens, channels = x.shape
    dim = channels // heads
    chunk = tokens if tokens <= SHORT else CHUNK
    parts = triton.cdiv(tokens, chunk)
    program = Program(5)
    sums = program.buffer((parts, images, channels), torch.float32)
    out = program.buffer((images, channels, 3, 3), dtype)
    mean = program.buffer((images, channels), torch.float32)
    program.results = out.slot, mean.slot
    program.launch(
        weights_kernels.sum_tokens, (triton.cdiv(channels, TILE["W"]), images, parts),
        (x, sums, *x.strides[:2], channels, tokens, chunk), TILE,
    )  # fmt: skip
    width = max(16, triton.next_power_of_2(dim))
    program.launch(
        weights_kernels.two_layers, (triton.cdiv(images, IMAGES), heads, 9),
        (sums, w1, b1, w2, b2, mean, out, images, tokens, parts, channels),
        {"D": dim, "W": width, "IMAGES": IMAGES, "DOT": PRODUCTS[dtype], "num_warps": max(2, width // 16)},
    )  # fmt: skip
    return program


@torch.library.register_fake("sightline::local_weights", lib=LIBRARY)
def _(tokens, w1, b1, w2, b2, heads, dtype):  # type: ignore[no-untyped-def]
    images, _, channels = tokens.shape
    out = tokens.new_empty((images, channels, 3, 3), dtype=dtype)
    return out, tokens.new_empty((images, channels), dtype=torch.float32)


class LocalWeights(torch.autograd.Function):
    """`local_weights` with its gradient."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        tokens, w1, b1, w2, _, ctx.heads, _ = inputs
        with torch._C._AutoDispatchBelowAutograd():
            out, mean = torch.ops.sightline.local_weights(*inputs)
        ctx.save_for_backward(mean, w1, b1, w2)
        ctx.length, ctx.dtype = tokens.shape[1], tokens.dtype
        ctx.mark_non_differentiable(mean)
        return out, mean

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        mean, w1, b1, w2 = ctx.saved_tensors
        first, second = (w.float().view(ctx.heads, -1, w.shape[1]) for w in (w1, w2))  # H D D, H 9D D
        x = mean.view(mean.shape[0], ctx.heads, -1).transpose(0, 1)  # H B D
        hidden = torch.baddbmm(b1.float().view(ctx.heads, 1, -1), x, first.transpose(1, 2))
        grad = grads[0].float().reshape(mean.shape[0], ctx.heads, -1).transpose(0, 1)  # H B 9D
        d_hidden = torch.ops.aten.gelu_backward(torch.bmm(grad, second), hidden)
        d_second = torch.bmm(grad.transpose(1, 2), torch.nn.functional.gelu(hidden))
        d_first = torch.bmm(d_hidden.transpose(1, 2), x)
        d_mean = torch.bmm(d_hidden, first).transpose(0, 1).flatten(1) / ctx.length
        d_tokens = d_mean.to(ctx.dtype).unsqueeze(1).expand(-1, ctx.length, -1)
        d_w1, d_w2 = (t.to(w.dtype).reshape(w.shape) for t, w in ((d_first, w1), (d_second, w2)))
        d_b1, d_b2 = (t.sum(1).flatten().to(b1.dtype) for t in (d_hidden, grad))
        return d_tokens, d_w1, d_b1, d_w2, d_b2, None, None


register_gradient("local_weights", LocalWeights)
local_weights = torch.ops.sightline.local_weights


@register_flop_formula(torch.ops.sightline.local_weights)
def _(tokens, w1, b1, w2, b2, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * tokens[0] * (w1[0] * w1[1] + w2[0] * w2[1])
