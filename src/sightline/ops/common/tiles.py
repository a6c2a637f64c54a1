"""Shared by the kernels of all operators: matrix products, and the tokens of an image or a head.

Kernels take tokens (B, N, H, D), whose heads lie next to each other, as a pointer and the strides of images and tokens.
They cast numbers to float32, since torch's compiler passes them as float64.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(LOG2E x)


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
def image_of(x, batch, token, cu, image, tokens, first_channel, VARLEN: tl.constexpr):
    """Pointer to an image's first token at a channel, and the image's number of tokens."""
    if VARLEN:
        start = tl.load(cu + image)
        return x + start.to(tl.int64) * token + first_channel, (tl.load(cu + image + 1) - start).to(tl.int32)
    else:
        return x + tl.cast(image, tl.int64) * batch + first_channel, tokens


@triton.jit
def head_of(x, batch, token, cu, image, head, tokens, D: tl.constexpr, VARLEN: tl.constexpr):
    """One head of one image, its pointer and the stride of its tokens; and the image's number of tokens."""
    ptr, n = image_of(x, batch, token, cu, image, tokens, head * D, VARLEN)
    return (ptr, token), n
