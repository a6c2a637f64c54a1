"""Compiles every kernel for a GPU without one: `python compiling.py 90` prints a JSON line per kernel and case.

Programs are planned from layouts alone, as for a call, and what they launch is compiled with the types and
specialisations that Triton would find. Not for Triton's interpreter, hence a script of its own.
"""

import json
import sys
from collections.abc import Iterator
from inspect import getmembers

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from sightline.ops.common import kernels as common_kernels
from sightline.ops.common.launching import Launch, Layout, Program
from sightline.ops.headwise_conv import kernels as conv_kernels
from sightline.ops.headwise_conv import launch as conv
from sightline.ops.inline import weights_kernels
from sightline.ops.inline import weights_operator as weights
from sightline.ops.linear import backward_kernels, forward_kernels
from sightline.ops.linear import launch as linear
from sightline.ops.soft import backward_kernels as soft_backward
from sightline.ops.soft import forward_kernels as soft_forward
from sightline.ops.soft import launch as soft
from sightline.ops.soft import matrix_kernels

MODULES = (
    common_kernels, conv_kernels, weights_kernels, forward_kernels, backward_kernels, soft_forward, soft_backward,
    matrix_kernels,
)  # fmt: skip
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.bool: "*u1",
}
ALIGNED = [["tt.divisibility", 16]]
BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16

# dtype, tokens on a side of the grid, heads, head dim, kind of attention
ATTENTION = [
    (BF16, 14, 6, 32, "inline"),
    (BF16, 64, 1, 128, "masked"),
    (FP16, 14, 3, 24, "packed"),
    (FP32, 64, 2, 64, "linear"),
]
# dtype, tokens, landmarks, head dim, kind
SOFT = [(BF16, 196, 49, 32, "packed"), (FP32, 4096, 196, 64, "masked")]
CONV = [(BF16, 32, 9), (FP32, 64, 5)]  # dtype, head dim, side of the filter


def layout(slot: int, *shape: int, dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> Layout:
    return Layout(slot, shape, strides or torch.empty(shape, device="meta").stride(), dtype)


def programs() -> Iterator[tuple[str, torch.dtype, int, Program]]:
    """Operator, dtype, head dim, and a program."""
    for dtype, side, heads, dim, kind in ATTENTION:
        operator = "linear_attention" if kind == "linear" else "inline_attention"
        for program in attention(dtype, side, heads, dim, kind):
            yield operator, dtype, dim, program
    for program in residual_weights(BF16, 6, 32):
        yield "inline_attention", BF16, 32, program
    for dtype, tokens, landmarks, dim, kind in SOFT:
        for program in soft_attention(dtype, tokens, landmarks, dim, kind):
            yield "soft_attention", dtype, dim, program
    for dtype, dim, size in CONV:
        for program in convolution(dtype, dim, size):
            yield "headwise_conv", dtype, dim, program


def attention(dtype: torch.dtype, side: int, heads: int, dim: int, kind: str) -> Iterator[Program]:
    tokens, channels = side * side, heads * dim
    strides = (tokens * 3 * channels, 3 * channels, dim, 1)
    q, k, v = (layout(slot, 4, tokens, heads, dim, dtype=dtype, strides=strides) for slot in range(3))
    g, dq, dk, dv = (layout(slot, 4, tokens, heads, dim, dtype=dtype) for slot in (3, 9, 10, 11))
    residual = None if kind == "linear" else layout(3, 4, channels, 3, 3, dtype=dtype)
    mask = layout(4, 4, tokens, dtype=torch.bool) if kind == "masked" else None
    cu = layout(5, 5, dtype=torch.int32) if kind == "packed" else None
    grids = layout(6, 4, 2, dtype=torch.int32) if kind == "packed" else None
    phi = "elu1" if kind == "linear" else "identity"
    call = linear.Call(
        phi, kind == "linear", 0.2, 1e-6, 0, (0, 0) if residual is None else (side, side), tokens if cu else 0
    )
    sums = layout(8, 4, linear.row_size(heads, dim), dtype=FP32)
    yield linear._forward(q, k, v, residual, mask, cu, grids, call=call, save=True)
    yield linear._backward(q, k, v, g, residual, mask, cu, grids, sums, dq, dk, dv, call=call)


def residual_weights(dtype: torch.dtype, heads: int, dim: int) -> Iterator[Program]:
    channels = heads * dim
    x, grad = layout(0, 4, 196, channels, dtype=dtype), layout(0, 4, channels, 3, 3, dtype=dtype)
    mean = layout(1, 4, channels, dtype=FP32)
    shapes = ((channels, dim, 1), (channels,), (9 * channels, dim, 1), (9 * channels,))
    layers = [layout(slot, *shape, dtype=dtype) for slot, shape in enumerate(shapes, 1)]
    yield weights._forward(x, *layers, heads=heads, dtype=dtype)
    yield weights._backward(grad, mean, *layers, heads=heads, tokens=196)


def soft_attention(dtype: torch.dtype, tokens: int, landmarks: int, dim: int, kind: str) -> Iterator[Program]:
    q, v, g = (layout(slot, 4, tokens, 2, dim, dtype=dtype) for slot in (0, 1, 3))
    marks = layout(2, 4, landmarks, 2, dim, dtype=dtype)
    mask = layout(3, 4, tokens, dtype=torch.bool) if kind == "masked" else None
    ends = [layout(slot, 5, dtype=torch.int32) if kind == "packed" else None for slot in (4, 5)]
    longest, most = (tokens, landmarks) if kind == "packed" else (0, 0)
    call = soft.Call(longest, most, 0.4, dim == 32, 3)
    saved = layout(7, *soft.saved_shape(8, landmarks, dim, True), dtype=FP32)
    yield soft._forward(q, v, marks, mask, *ends, call=call, save=True)
    yield soft._backward(q, v, marks, g, mask, *ends, saved, call=call)


def convolution(dtype: torch.dtype, dim: int, size: int) -> Iterator[Program]:
    x, other = (layout(slot, 4, 784, 2, dim, dtype=dtype) for slot in (0, 2))
    filters = layout(1, 2, 1, size, size, dtype=dtype)
    yield conv._convolve(x, filters, other, grid=(28, 28), flip=False)
    yield conv._weight_gradient(x, other, filters, grid=(28, 28))


def source(launch: Launch) -> tuple[ASTSource, dict[str, object]]:
    """What Triton compiles for a launch, and the options of the compiler."""
    names = launch.kernel.arg_names
    constants, attributes = {}, {}

    def describe(arg: object, path: tuple[int, ...], specialised: bool) -> object:
        """The type of an argument; constants and attributes are noted by their path."""
        if isinstance(arg, tuple):
            return type(arg)(*(describe(part, (*path, i), specialised) for i, part in enumerate(arg)))
        if arg is None or (specialised and arg == 1):
            constants[path] = arg
            return "constexpr"
        if isinstance(arg, Layout):
            attributes[path] = ALIGNED if arg.offset % 16 == 0 else []
            return TYPES[arg.dtype]
        if isinstance(arg, int) and specialised and arg % 16 == 0:
            attributes[path] = ALIGNED
        return "fp32" if isinstance(arg, float) else "i32"

    signature = {}
    for i, (name, arg) in enumerate(zip(names, launch.args, strict=False)):
        signature[name] = describe(arg, (i,), name not in launch.kernel.do_not_specialize)
    for i, name in enumerate(names[len(launch.args) :], len(launch.args)):
        signature[name], constants[i,] = "constexpr", launch.constants[name]
    options = {key: value for key, value in launch.constants.items() if key not in names}
    return ASTSource(launch.kernel, signature, constants, attributes), options


def every_kernel() -> set[str]:
    """The functions that are launched: those that ask for their program's number."""
    found = (f for module in MODULES for _, f in getmembers(module) if isinstance(f, JITFunction))
    return {_name(f) for f in found if "tl.program_id" in f.src}


def _name(kernel: JITFunction) -> str:
    return f"{kernel.fn.__module__}.{kernel.fn.__name__}"


def main(capability: int) -> None:
    compiled = set()
    for operator, dtype, dim, program in programs():
        for launch in program.launches:
            made, options = source(launch)
            key = (_name(launch.kernel), str(made.signature), str(made.constants), str(options))
            if key in compiled:
                continue
            compiled.add(key)
            kernel = triton.compile(made, target=GPUTarget("cuda", capability, 32), options=options)
            row = {"kernel": key[0], "operator": operator, "dtype": str(dtype), "head_dim": dim}
            print(json.dumps({**row, "shared": kernel.metadata.shared}))
    missing = every_kernel() - {key[0] for key in compiled}
    assert not missing, f"never compiled: {sorted(missing)}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
