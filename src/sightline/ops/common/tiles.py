"""Shared by the kernels of all operators: matrix products, and the tokens of an image or a head."""

from typing import NamedTuple

import triton
import triton.language as tl


class Head(NamedTuple):
    """One head of one image: pointer to its first token, strides from token to token and from channel to channel."""

    ptr: tl.tensor
    token: tl.tensor
    dim: tl.tensor


@triton.jit
def operand(x, DOT: tl.constexpr):
    """`x` in the type that matrix products take: bfloat16 for bfloat16 tensors, else float32.

    float16 tensors are multiplied as tf32, which holds their digits and does not overflow.
    """
    if DOT == "bf16":
        return x.to(tl.bfloat16)
    else:
        return x.to(tl.float32)


@triton.jit
def dot(a, b, DOT: tl.constexpr, acc=None):
    """acc + a b in float32."""
    if DOT == "fp32":
        return tl.dot(a, b, acc, input_precision="tf32x3", out_dtype=tl.float32)
    elif DOT == "tf32":
        return tl.dot(a, b, acc, input_precision="tf32", out_dtype=tl.float32)
    else:
        return tl.dot(a, b, acc, out_dtype=tl.float32)


@triton.jit
def image_of(x, cu, image, tokens, VARLEN: tl.constexpr):
    """Pointer to the first token of an image of `x` (`Tokens`), and the image's number of tokens."""
    if VARLEN:
        start = tl.load(cu + image)
        return x.ptr + start.to(tl.int64) * x.token, (tl.load(cu + image + 1) - start).to(tl.int32)
    else:
        return x.ptr + tl.cast(image, tl.int64) * x.batch, tokens


@triton.jit
def head_of(x, cu, image, head, tokens, VARLEN: tl.constexpr):
    """The `Head` of an image of `x` (`Tokens`), and the image's number of tokens."""
    ptr, n = image_of(x, cu, image, tokens, VARLEN)
    return Head(ptr + tl.cast(head, tl.int64) * x.head, x.token, x.dim), n
