"""Compiles every kernel for a GPU without one: `python compiling.py 90` prints a JSON line per kernel and case.

Operators run on tensors without memory, and what they launch is compiled with the types and specializations that Triton
would find. Not for Triton's interpreter, hence a script of its own.
"""

import json
import sys
from collections.abc import Iterator
from inspect import getmembers
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from sightline.ops.common import kernels as common_kernels
from sightline.ops.common import launching
from sightline.ops.headwise_conv import kernels as conv_kernels
from sightline.ops.headwise_conv import operator as conv
from sightline.ops.inline import layer_kernels, layer_operator
from sightline.ops.linear import backward_kernels, forward_kernels, weights_kernels
from sightline.ops.linear import launch as linear_launch
from sightline.ops.linear import operator as linear
from sightline.ops.soft import backward_kernels as soft_backward
from sightline.ops.soft import forward_kernels as soft_forward
from sightline.ops.soft import launch as soft_launch
from sightline.ops.soft import matrix_kernels
from sightline.ops.soft import operator as soft

MODULES = (
    common_kernels, conv_kernels, weights_kernels, forward_kernels, backward_kernels, soft_forward, soft_backward,
    matrix_kernels, layer_kernels,
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
DOT = {BF16: "bf16", FP16: "tf32", FP32: "fp32"}

# dtype, tokens on a side of the grid, heads, head dim, kind of attention
ATTENTION = [
    (BF16, 14, 6, 32, "inline"),
    (BF16, 14, 6, 32, "layer"),
    (BF16, 64, 6, 32, "layer"),
    (BF16, 64, 1, 128, "masked"),
    (FP16, 14, 3, 24, "packed"),
    (FP32, 64, 2, 64, "linear"),
]
PROJECTED = [(BF16, 6, 32), (BF16, 3, 128), (FP16, 6, 64)]  # dtype, heads, head dim
# dtype, tokens, landmarks, head dim, kind
SOFT = [(BF16, 196, 49, 32, "packed"), (FP32, 4096, 196, 64, "masked")]
CONV = [(BF16, 32, 9), (FP32, 64, 5)]  # dtype, head dim, side of the filter


class Launch(NamedTuple):
    kernel: JITFunction
    args: tuple
    constants: dict[str, object]


class Collector:
    """Takes the place of the recorder: keeps what an operator launches."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def add_buffer(self, made: Tensor) -> None:
        pass

    def add_view(self, view: Tensor, base: Tensor) -> None:
        pass

    def launch(self, kernel: JITFunction, grid: tuple, args: tuple, constants: dict[str, object]) -> None:
        self.launches.append(Launch(kernel, args, dict(constants)))


def meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launches() -> Iterator[tuple[str, torch.dtype, int, Launch]]:
    """Operator, dtype, head dim, and a launch."""
    cases = [
        *(
            ("linear_attention" if c[4] == "linear" else "inline_attention", c[0], c[3], attention, c)
            for c in ATTENTION
        ),
        *(("inline_attention", c[0], c[2], projected, c) for c in PROJECTED),
        *(("soft_attention", c[0], c[3], soft_attention, c) for c in SOFT),
        *(("headwise_conv", c[0], c[1], convolution, c) for c in CONV),
    ]
    for operator, dtype, dim, run, case in cases:
        launching._local.recorder = collector = Collector()
        run(*case)
        for launch in collector.launches:
            yield operator, dtype, dim, launch


def attention(dtype: torch.dtype, side: int, heads: int, dim: int, kind: str) -> None:
    tokens, channels = side * side, heads * dim
    layers: list[Tensor | None] = [None] * 5
    weights = mask = cu = grids = None
    q, k, v = meta(4, tokens, 3, heads, dim, dtype=dtype).unbind(2)
    grad = meta(4, tokens, heads, dim, dtype=dtype)
    if kind == "layer":
        q, k, v = meta(4, tokens, 3 * channels, dtype=dtype), None, None
        grad = meta(4, tokens, channels, dtype=dtype)
        shapes = ((4, tokens, channels), (channels, dim, 1), (channels,), (9 * channels, dim, 1), (9 * channels,))
        layers = [meta(*shape, dtype=dtype) for shape in shapes]
    elif kind != "linear":
        weights = meta(4, 9, channels, dtype=dtype)
    if kind == "masked":
        mask = meta(4, tokens, dtype=torch.bool)
    if kind == "packed":
        cu, grids = meta(5, dtype=torch.int32), meta(4, 2, dtype=torch.int32)
    is_linear = kind == "linear"
    grid = (0, 0) if is_linear else (side, side)
    options = (heads, tokens if cu is not None else 0, *grid, 0, 0.2, 1e-6, "elu1" if is_linear else "identity",
               is_linear, DOT[dtype])  # fmt: skip
    tensors = (q, k, v, weights, *layers, mask, cu, grids)
    _, sums, made, mean = linear.attend.function(*tensors, *options, True)
    weights = made if kind == "layer" else weights
    linear.attend_backward.function(
        q, k, v, grad, weights, *layers[1:], mask, cu, grids, sums, mean, *options, dtype
    )  # fmt: skip


def projected(dtype: torch.dtype, heads: int, dim: int) -> None:
    channels = heads * dim
    sizes = (
        (channels, dim, 1),
        (channels,),
        (9 * channels, dim, 1),
        (9 * channels,),
        (channels, channels),
        (channels,),
    )
    layers = [meta(*shape, dtype=dtype) for shape in sizes]
    x, w, b = (meta(*shape, dtype=dtype) for shape in ((2, 197, channels), (3 * channels, channels), (3 * channels,)))
    layer_operator.inline_layer.function(x, w, b, *layers, heads, 14, 14, 1, 0.2, "identity", DOT[dtype], dtype)


def soft_attention(dtype: torch.dtype, tokens: int, landmarks: int, dim: int, kind: str) -> None:
    q, v, grad = (meta(4, tokens, 2, dim, dtype=dtype) for _ in range(3))
    marks = meta(4, landmarks, 2, dim, dtype=dtype)
    mask = meta(4, tokens, dtype=torch.bool) if kind == "masked" else None
    ends = [meta(5, dtype=torch.int32) if kind == "packed" else None for _ in range(2)]
    longest, most = (tokens, landmarks) if kind == "packed" else (0, 0)
    options = (longest, most, 0.4, dim == 32, 3, DOT[dtype])
    _, *saved = soft.soft_attend.function(q, v, marks, mask, *ends, *options, True)
    soft.soft_attend_backward.function(q, v, marks, grad, mask, *ends, *saved, *options)


def convolution(dtype: torch.dtype, dim: int, size: int) -> None:
    x, other = (meta(4, 784, 2, dim, dtype=dtype) for _ in range(2))
    filters = meta(2, 1, size, size, dtype=dtype)
    conv._convolve.function(x, filters, other, 28, 28, False, DOT[dtype])
    conv._convolve_weight.function(x, other, filters, 28, 28, DOT[dtype])


def source(launch: Launch) -> tuple[ASTSource, dict[str, object]]:
    """What Triton compiles for a launch, and the options of the compiler."""
    names = launch.kernel.arg_names
    signature, constants, attributes = {}, {}, {}
    for i, (name, arg) in enumerate(zip(names, launch.args, strict=False)):
        specialized = name not in launch.kernel.do_not_specialize
        if arg is None or (not isinstance(arg, Tensor) and specialized and arg == 1):
            signature[name], constants[i,] = "constexpr", arg
        elif isinstance(arg, Tensor):
            signature[name], attributes[i,] = TYPES[arg.dtype], ALIGNED
        else:
            signature[name] = "fp32" if isinstance(arg, float) else "i32"
            if isinstance(arg, int) and specialized and arg % 16 == 0:
                attributes[i,] = ALIGNED
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
    linear_launch._compile_ahead = soft_launch._compile_ahead = layer_operator._compile_ahead = lambda *args: None
    compiled = set()
    for operator, dtype, dim, launch in launches():
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
