"""Compiles kernels for GPUs without one: `python compiling.py 80 90` prints a JSON line per kernel and case.

Operators run on tensors without memory, with the tiles of each GPU, and what they launch is compiled with the types and
specializations that Triton would find. By default every kernel for compute capability 9.0, and for others those that
need most shared memory; with `--all` every kernel with every dtype and width for all of them. Cases that `backend`
leaves to the reference are left out. Not for Triton's interpreter, hence a script of its own.

torch's compiler, Inductor, specializes every number of a launch, also those that kernels are not to be specialized
for: one that equals 1 is a constant. Launches with such numbers are compiled in that way as well, and every kernel is
parsed with the constant 1 for each of its numbers; with `--parse` nothing else is done.

A summary of each GPU goes to standard error. The exit status is 1 if a kernel does not compile or does not fit.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import getmembers
from itertools import product
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

from sightline import backend
from sightline.ops.common import kernels as common_kernels
from sightline.ops.common import launching
from sightline.ops.gelu import kernels as gelu_kernels
from sightline.ops.gelu import operator as gelu_operator
from sightline.ops.headwise_conv import kernels as conv_kernels
from sightline.ops.headwise_conv import operator as conv
from sightline.ops.inline import layer_kernels, layer_operator
from sightline.ops.linear import backward_kernels, forward_kernels, near_kernels, weights_kernels
from sightline.ops.linear import launch as linear_launch
from sightline.ops.linear import operator as linear
from sightline.ops.norm import kernels as norm_kernels
from sightline.ops.norm import operator as norm_operator
from sightline.ops.patches import kernels as patches_kernels
from sightline.ops.patches import operator as patches_operator
from sightline.ops.soft import backward_kernels as soft_backward
from sightline.ops.soft import forward_kernels as soft_forward
from sightline.ops.soft import launch as soft_launch
from sightline.ops.soft import matrix_kernels
from sightline.ops.soft import operator as soft

MODULES = (
    common_kernels, conv_kernels, weights_kernels, forward_kernels, near_kernels, backward_kernels, soft_forward,
    soft_backward, matrix_kernels, gelu_kernels, layer_kernels, norm_kernels, patches_kernels,
)  # fmt: skip
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.bool: "*u1",
}
REGISTERS = 65_536  # of a multiprocessor
SPILLED = 2048  # bytes per thread, at most
TENSOR_MEMORY = 512  # columns of it, from compute capability 10.0 on
ALIGNED = [["tt.divisibility", 16]]
TRITON, INDUCTOR, ONES = "triton", "inductor", "ones"  # who launches a kernel; the last with 1 for every number
BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16
LAYERS = ("layer", "line", "readers", "near")  # kinds of attention with the weights of a layer
HEADS = {24: 3, 32: 6, 64: 2, 128: 1}

# The arguments of the functions of these names below: together every kernel.
CASES: dict[str, list[tuple]] = {
    "attention": [
        (BF16, "bf16", 14, 32, "inline"),
        (BF16, "bf16", 14, 32, "bare"),
        (BF16, "bf16", 14, 32, "layer"),
        (BF16, "bf16", 64, 32, "layer"),
        (BF16, "bf16", 64, 128, "masked"),
        (FP16, "tf32", 14, 24, "packed"),
        (FP32, "fp32", 64, 64, "linear"),
        (BF16, "bf16", 14, 64, "readers"),
        (FP16, "tf32", 64, 24, "readers"),
        (BF16, "bf16", 64, 64, "near"),
        (BF16, "bf16", 14, 64, "windows"),
        (BF16, "bf16", 32, 32, "line"),
        (FP32, "fp32", 40, 64, "line"),
    ],
    "projected": [
        (BF16, "bf16", 6, 32, 64, "identity", True),
        (BF16, "bf16", 6, 32, 14, "elu1", True),
        (BF16, "bf16", 3, 128),
    ],
    "soft_attention": [(BF16, "bf16", 196, 49, 32, "packed"), (FP32, "fp32", 4096, 196, 64, "masked")],
    "convolution": [(BF16, "bf16", 32, 9), (FP32, "fp32", 64, 5)],
    "norm": [(BF16, 192, "norm"), (BF16, 96, ""), (FP32, 64, "sum"), (BF16, 320, "alone")],
    "gelu": [(BF16, 768, False), (FP32, 96, True)],
    "patches": [(FP16, 64)],
}
# Cases with the kernels in them that need most shared memory.
LARGEST: dict[str, list[tuple[tuple, set[str]]]] = {
    "attention": [
        ((BF16, "bf16", 64, 128, "masked"), {"backward_queries", "backward_keys"}),
        ((FP16, "tf32", 64, 128, "masked"), {"backward_keys"}),
        ((FP32, "fp32", 64, 64, "linear"), {"backward_queries"}),
        ((FP16, "tf32", 64, 64, "readers"), {"forward_partial"}),
        ((FP16, "tf32", 64, 32, "readers"), {"forward_write"}),
        ((FP16, "tf32", 14, 64, "readers"), {"forward_short"}),
        ((FP16, "tf32", 14, 64, "near"), {"near_write"}),
        *(((FP16, "tf32", 14, dim, "windows"), {"near_short"}) for dim in (64, 32)),
    ],
    "projected": [
        ((FP16, "tf32", 4, 64, 64, "identity", True), {"layer_write", "layer_sums"}),
        ((BF16, "bf16", 3, 128), {"layer_sums"}),
    ],
    "soft_attention": [
        ((BF16, "bf16", 196, 49, 64, "masked"), {"backward_tokens"}),
        ((FP32, "fp32", 4096, 196, 128, "plain"), {"newton_product", "backward_landmarks"}),
    ],
    "convolution": [((BF16, "bf16", 128, 9), {"conv"})],
    "norm": [((FP32, 2048, "norm"), {"norm_back"})],
}
# In float32 it takes a small GPU to its limit, and a compiler three times as long as in half precision.
LAYERS_BACK = {True: (FP32, "fp32", 14, 64, "layer"), False: (FP16, "tf32", 14, 64, "layer")}
TYPED = [(BF16, "bf16"), (FP16, "tf32"), (FP32, "fp32")]
VIEWS = ("", "norm", "sum", "alone")
WIDTHS = [*((*typed, dim) for typed in TYPED for dim in (32, 64, 128)), (FP32, "tf32", 128)]
ALL: dict[str, list[tuple]] = {
    "attention": [
        *((t, dot, side, dim, kind) for t, dot, dim in WIDTHS for side in (14, 64) for kind in ("layer", "linear")),
        *((t, dot, 14, 64, "packed") for t, dot in TYPED),
        *((t, dot, 64, 128, "masked") for t, dot in [*TYPED, (FP32, "tf32")]),
        *((t, dot, 14, 128, "inline") for t, dot in [*TYPED, (FP32, "tf32")]),
        *((t, dot, 14, dim, "bare") for t, dot, dim in WIDTHS),
        *((t, dot, side, dim, "readers") for t, dot in TYPED[:2] for side in (14, 64) for dim in (24, 32, 64)),
        *((t, dot, 64, dim, "near") for t, dot in TYPED[:2] for dim in (24, 32, 64)),
        *((t, dot, 14, dim, "windows") for t, dot in TYPED[:2] for dim in (24, 32, 64)),
    ],
    "projected": [
        (t, dot, heads, dim, side, "identity", heads * dim <= backend.FOLDED)
        for t, dot in TYPED[:2]
        for heads, dim in ((6, 32), (8, 32), (12, 32), (4, 64), (2, 128), (3, 128))
        for side in (14, 64)
    ],
    "soft_attention": [
        *((t, dot, 196, 49, dim, "packed" if dim == 32 else "masked") for t, dot, dim in WIDTHS),
        *((t, dot, 4096, 196, dim, "plain") for t, dot, dim in WIDTHS),
        *((t, dot, 4096, 49, 64, "plain") for t, dot in TYPED),
    ],
    "convolution": [(*wide, size) for wide in WIDTHS for size in ((5, 7) if wide[2] == 64 else (3, 9))],
    "norm": [(t, channels, view) for t in (BF16, FP16, FP32) for channels in (32, 192, 768, 2048) for view in VIEWS],
    "gelu": [(t, channels, tanh) for t in (BF16, FP16, FP32) for channels in (96, 768) for tanh in (False, True)],
    "patches": [(FP16, 64), (FP32, 96)],
}


class Case(NamedTuple):
    """An operator for a dtype and head dim, the function below that runs it, and the function's arguments."""

    operator: str
    dtype: torch.dtype
    head_dim: int
    function: str
    args: tuple

    @classmethod
    def of(cls, function: str, args: tuple) -> "Case":
        attentions = {"linear": "linear_attention", **dict.fromkeys(LAYERS, "inline_layer")}
        operator, position = {
            "attention": (attentions.get(args[-1], "inline_attention"), 3),
            "projected": ("whole_layer", 3),
            "soft_attention": ("soft_attention", 4),
            "convolution": ("headwise_conv", 2),
            "norm": ("add_norm", 1),
            "gelu": ("add_norm", 1),  # where norms are taken, and with less shared memory
            "patches": ("headwise_conv", 1),  # needs no shared memory at all
        }[function]
        return cls(operator, args[0], args[position], function, args)


class Launch(NamedTuple):
    kernel: JITFunction
    args: tuple
    constants: dict[str, Any]


class Collector:
    """Takes the place of the recorder: keeps what an operator launches."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def add_buffer(self, made: Tensor) -> None:
        pass

    def add_view(self, view: Tensor, base: Tensor) -> None:
        pass

    def launch(self, kernel: JITFunction, grid: tuple, args: tuple, constants: dict[str, Any]) -> None:
        self.launches.append(Launch(kernel, args, dict(constants)))


def meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def cases(capability: int, whole: bool) -> list[tuple[Case, set[str] | None]]:
    """Cases for a GPU, each with the names of the kernels to compile, None for all."""
    if whole or capability == 90:
        chosen = ALL if whole else CASES
        return [(Case.of(function, args), None) for function, rows in chosen.items() for args in rows]
    chosen = [(Case.of(function, args), names) for function, rows in LARGEST.items() for args, names in rows]
    small = backend.SHARED_MEMORY[divmod(capability, 10)] <= backend.SMALL
    return [*chosen, (Case.of("attention", LAYERS_BACK[small]), {"layers_back"})]


def launches(capability: int, whole: bool, ways: Iterable[str]) -> Iterator[tuple[Case, Launch, str]]:
    """What the cases launch on a GPU, in one way or another: each kernel once per dtype and set of tensors, or with
    `whole`, or where it is only parsed, per signature and constants."""
    shared = backend.SHARED_MEMORY[divmod(capability, 10)]
    tiles = backend.tile_memory((*divmod(capability, 10), shared))
    backend.shared_memory = lambda device: tiles
    seen = set()
    for case, names in cases(capability, whole):
        if backend.needed(case.operator, case.dtype, case.head_dim) > shared:
            continue
        launching._local.recorder = collector = Collector()
        globals()[case.function](*case.args)
        for launch, way in product(collector.launches, ways):
            made, options = source(launch, way)
            if way == INDUCTOR and made.constants == source(launch, TRITON)[0].constants:
                continue
            key: tuple = (_name(launch.kernel), way, case.dtype, *(arg is None for arg in launch.args),
                          launch.constants.get("LINE"))  # fmt: skip
            if whole or way == ONES:
                key = (*key[:2], str(made.signature), str(made.constants), str(options))
            if key not in seen and (names is None or launch.kernel.fn.__name__ in names):
                seen.add(key)
                yield case, launch, way


def attention(dtype: torch.dtype, dot: str, side: int, dim: int, kind: str) -> None:
    heads = HEADS[dim]
    tokens, channels = side * side, heads * dim
    layers: list[Tensor | None] = [None] * 6
    weights = mask = cu = grids = None
    q, k, v = meta(4, tokens, 3, heads, dim, dtype=dtype).unbind(2)
    grad = meta(4, tokens, heads, dim, dtype=dtype)
    readers, far, agents, window, reads = None, (None,) * 3, 0, 0, kind in ("readers", "near", "windows")
    if reads:
        readers, agents = meta(4, 49, heads, dim, dtype=dtype), 49
    if kind in ("near", "windows"):
        far, window = tuple(meta(heads, n, dtype=dtype) for n in (dim, 1, 1)), 7
    packed = kind in ("layer", "line")
    if kind in LAYERS:
        if packed:
            q, k, v = meta(4, tokens, 3 * channels, dtype=dtype), None, None
            grad = meta(4, tokens, channels, dtype=dtype)
        shapes = ((4, tokens, channels), (channels, dim, 1), (channels,), (9 * channels, dim, 1), (9 * channels,))
        layers = [*(meta(*shape, dtype=dtype) for shape in shapes), meta(3 * channels, dtype=dtype)]
    elif kind not in ("linear", "bare", "windows"):
        weights = meta(4, 9, channels, dtype=dtype)
    if kind == "masked":
        mask = meta(4, tokens, dtype=torch.bool)
    if kind == "packed":
        cu, grids = meta(5, dtype=torch.int32), meta(4, 2, dtype=torch.int32)
    is_linear = kind == "linear"
    grid = {"linear": (0, 0), "bare": (0, 0), "line": (1, tokens)}.get(kind, (side, side))
    options = (heads, tokens if cu is not None else 0, *grid, 0, 0.2, 1e-6, "elu1" if is_linear else "identity",
               is_linear, dot)  # fmt: skip
    tensors = (q, k, v, weights, *layers, readers, *far, mask, cu, grids)
    _, sums, made, mean = linear.attend.function(*tensors, agents, window, *options, not reads)
    if reads:
        return
    weights = made if packed else weights
    linear.attend_backward.function(
        q, k, v, grad, weights, *layers[1:], mask, cu, grids, sums, mean, *options, dtype
    )  # fmt: skip


def projected(
    dtype: torch.dtype, dot: str, heads: int, dim: int, side: int = 14, phi: str = "identity", normed: bool = False
) -> None:
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
    x, w, b = (
        meta(*shape, dtype=dtype)
        for shape in ((2, side * side + 1, channels), (3 * channels, channels), (3 * channels,))
    )
    norm = [x, *(meta(channels, dtype=dtype) for _ in range(2))] if normed else [None] * 3
    layer_operator.inline_layer.function(x, *norm, w, b, *layers, heads, side, side, 1, 0.2, 1e-6, phi, dot, dtype)


def soft_attention(dtype: torch.dtype, dot: str, tokens: int, landmarks: int, dim: int, kind: str) -> None:
    q, v, grad = (meta(4, tokens, 2, dim, dtype=dtype) for _ in range(3))
    marks = meta(4, landmarks, 2, dim, dtype=dtype)
    mask = meta(4, tokens, dtype=torch.bool) if kind == "masked" else None
    ends = [meta(5, dtype=torch.int32) if kind == "packed" else None for _ in range(2)]
    longest, most = (tokens, landmarks) if kind == "packed" else (0, 0)
    options = (longest, most, 0.4, dim == 32, 3, dot)
    _, *saved = soft.soft_attend.function(q, v, marks, mask, *ends, *options, True)
    soft.soft_attend_backward.function(q, v, marks, grad, mask, *ends, *saved, *options)


def convolution(dtype: torch.dtype, dot: str, dim: int, size: int) -> None:
    x, other = (meta(4, 784, 2, dim, dtype=dtype) for _ in range(2))
    filters = meta(2, 1, size, size, dtype=dtype)
    conv._convolve.function(x, filters, other, 28, 28, False, dot)
    conv._convolve_weight.function(x, other, filters, 28, 28, dot)


def norm(dtype: torch.dtype, channels: int, view: str) -> None:
    """Of a sum in float32, or with the dtype without a view; then with the bias in the update and one that comes
    later; "alone" has no sum."""
    kind = FP32 if view else dtype
    total, extra = (meta(4, 196, channels, dtype=each) for each in (kind, kind if view == "sum" else dtype))
    d_total = None if view == "alone" else total
    later = None if view else meta(176, 4 * channels, dtype=FP32)
    given = (*(meta(4, 196, 1, dtype=FP32) for _ in range(2)), meta(channels, dtype=FP32), d_total)
    norm_operator.add_norm_backward.function(
        total, *given, meta(4, 196, channels, dtype=dtype), extra if view else None, later, view == "sum", kind, dtype,
        *[None if view else dtype] * 2,
    )  # fmt: skip


def gelu(dtype: torch.dtype, channels: int, tanh: bool) -> None:
    gelu_operator.gelu_backward.function(*(meta(4, 196, channels, dtype=dtype) for _ in range(2)), tanh)


def patches(dtype: torch.dtype, channels: int) -> None:
    patches_operator.gather.function(meta(4, 784, channels, dtype=dtype), 28, 28, 2, 2, True)


def source(launch: Launch, way: str) -> tuple[ASTSource, dict[str, object]]:
    """What Triton compiles for a launch, and the options of the compiler."""
    names = launch.kernel.arg_names
    signature, constants, attributes = {}, {}, {}
    for i, (name, arg) in enumerate(zip(names, launch.args, strict=False)):
        if way == ONES and isinstance(arg, int):
            arg = 1
        specialized = way != TRITON or name not in launch.kernel.do_not_specialize
        if arg is None or (isinstance(arg, int) and specialized and arg == 1):
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


def resources(kernel: Any) -> dict[str, int]:
    """Bytes of shared memory and columns of tensor memory per block, registers and spilled bytes per thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = map(int, re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", report).groups())
    columns = getattr(kernel.metadata, "tmem_size", None) or 0
    return {"shared": kernel.metadata.shared, "tensor": columns, "registers": registers, "spilled": stack + local}


def parse(made: ASTSource, target: GPUTarget, options: dict[str, object]) -> None:
    """Triton's first step, which reads a kernel's Python and finds its types."""
    compiler, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    compiler.load_dialects(context)
    parsed = compiler.parse_options(dict(options))
    made.make_ir(target, parsed, compiler.get_codegen_implementation(parsed), compiler.get_module_map(), context)


def compile_launch(capability: int, case: Case, launch: Launch, way: str) -> dict[str, Any]:
    """Compile a launch for a GPU: what it needs, and as `problem` why it does not fit or failed."""
    made, options = source(launch, way)
    dtype = str(case.dtype).removeprefix("torch.")
    row = {"capability": capability, "kernel": _name(launch.kernel), "way": way, "operator": case.operator,
           "dtype": dtype, "dot": case.args[1], "head_dim": case.head_dim}  # fmt: skip
    target = GPUTarget("cuda", capability, 32)
    try:
        if way == ONES:
            parse(made, target, options)
            return {**row, "problem": None}
        needs = resources(triton.compile(made, target=target, options=options))
    except Exception as error:
        while error.__cause__ is not None:  # of a function that the kernel calls
            error = error.__cause__
        return {**row, "problem": f"{type(error).__name__}: {error}"}
    threads = 32 * options.get("num_warps", 4)
    limits = {"shared": backend.SHARED_MEMORY[divmod(capability, 10)], "tensor": TENSOR_MEMORY,
              "registers": REGISTERS // threads, "spilled": SPILLED}  # fmt: skip
    over = [f"{name} {needs[name]:,} > {limit:,}" for name, limit in limits.items() if needs[name] > limit]
    return {**row, **needs, "problem": ", ".join(over) or None}


def summary(capability: int, rows: list[dict[str, Any]]) -> str:
    """The kernels that need most of each resource, and all that do not fit."""
    lines = [f"{capability / 10}: {len(rows)} kernels, Triton {triton.__version__}"]
    for name in ("shared", "registers", "spilled"):
        most = max((row for row in rows if name in row), key=lambda row: row[name], default=None)
        lines += [f"  {name} {most[name]:,} at most: {_words(most)}"] if most else []
    lines += [f"  {_words(row)}: {row['problem']}" for row in rows if row["problem"]]
    return "\n".join(lines)


def _words(row: dict[str, Any]) -> str:
    name = f"{row['kernel'].removeprefix('sightline.ops.')} {row['dtype']} ({row['dot']}) {row['head_dim']}"
    return name if row["way"] == TRITON else f"{name} ({row['way']})"


def main(capabilities: Iterable[int], whole: bool, jobs: int, ways: Sequence[str]) -> bool:
    """Whether all kernels fit."""
    linear_launch._compile_ahead = soft_launch._compile_ahead = layer_operator._compile_ahead = lambda *args: None
    good = True
    with ThreadPoolExecutor(jobs) as pool:
        for capability in capabilities:
            work = list(launches(capability, whole, ways))
            rows = []
            for row in pool.map(lambda item: compile_launch(capability, *item), work):  # noqa: B023
                rows.append(row)
                print(json.dumps(row), flush=True)
            print(summary(capability, rows), file=sys.stderr, flush=True)
            missing = every_kernel() - {row["kernel"] for row in rows if row["way"] == ways[0]}
            assert not missing or capability != 90, f"never compiled: {sorted(missing)}"
            good &= all(row["problem"] is None for row in rows)
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capabilities", type=int, nargs="+", help="compute capabilities, 90 for 9.0")
    parser.add_argument("--all", action="store_true", help="every kernel with every dtype and width")
    parser.add_argument("--jobs", type=int, default=1, help="kernels that are compiled at a time")
    parser.add_argument("--parse", action="store_true", help="only parse them, with the constant 1 for every number")
    arguments = parser.parse_args()
    chosen = (ONES,) if arguments.parse else (TRITON, INDUCTOR, ONES)
    sys.exit(not main(arguments.capabilities, arguments.all, arguments.jobs, chosen))
