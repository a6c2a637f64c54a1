"""Which implementation runs: one policy for every operator and every fast path.

Every operator has a `torch` implementation, the readable reference, which runs on any device. Some have Triton kernels
as well. `auto` takes the kernels if they support the tensors and the device, else the reference. The environment
variable `SIGHTLINE_BACKEND` replaces `auto` for the operators that have kernels; an explicit `backend=` argument wins
over both. With `TRITON_INTERPRET=1`, Triton's interpreter runs the kernels on a CPU, slowly.

Layers and references also have fast paths (`FAST_PATHS`): the same result up to rounding, in fewer or larger steps,
used wherever they are faster. `SIGHTLINE_BACKEND=torch` turns off all of them and all kernels.
"""

import os
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import NamedTuple, ParamSpec

import torch
from torch import Tensor

from sightline.util.errors import InputError, shown

BACKENDS = ("auto", "triton", "torch")
VARIABLE = "SIGHTLINE_BACKEND"
TRITON_INSTALLED = find_spec("triton") is not None

# Operators that have Triton kernels, and what the kernels support.
TRITON_OPERATORS = frozenset({"headwise_conv", "inline_attention", "linear_attention", "soft_attention"})
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEAD_DIMS = (8, 128)
LANDMARKS = 4096  # of soft_attention, at most
BLOCK = 64  # landmarks that one program inverts
READERS = 64  # queries that attend by softmax within InLine attention, and channels of their heads, at most
WINDOW = 8  # tokens along the side of a window, at most, that are near there
READER_ROWS = 128  # of them at most in one program, which takes the heads of 64 channels together
WHOLE_LAYER_TOKENS = 8192  # of a batch, at most, that go through a layer by one operator
WHOLE_LAYER_PREFIX = 16  # tokens without a position, at most, there
FOLDED = 256  # channels, at most, of a layer whose output is projected by the kernel that mixes
FILTERS = (3, 5, 7, 9)  # sides of the filters of headwise_conv
TABLE_ROWS = 512  # of a table of tokens, at most, whose gradient is a product with one-hot tokens

CAPABILITY = (8, 0)  # of a GPU, at least: tensor cores for bfloat16 and TF32

# Bytes of shared memory that a block may have, by compute capability. Kernels take their tiles by these three sizes.
SMALL, MEDIUM, LARGE = 101_376, 166_912, 232_448
SHARED_MEMORY = {
    (8, 0): MEDIUM, (8, 6): SMALL, (8, 7): MEDIUM, (8, 9): SMALL, (9, 0): LARGE, (10, 0): LARGE, (10, 3): LARGE,
    (11, 0): LARGE, (12, 0): SMALL, (12, 1): SMALL,
}  # fmt: skip


class Limits(NamedTuple):
    """What a GPU offers a kernel: its compute capability, and bytes of shared memory per block."""

    major: int
    minor: int
    shared_memory: int


def choose(operator: str, device: torch.device, backend: str | None = None, obstacle: str | None = None) -> str:
    """The implementation to run for `operator` on `device`: "torch" or "triton".

    `obstacle` is the reason why the kernels cannot take the tensors (see `obstacle`); `auto` then takes the reference.

    Example: `choose("inline_attention", torch.device("cpu"))` gives "torch".
    """
    source = "backend" if backend is not None else VARIABLE
    wanted = backend if backend is not None else requested()
    if wanted not in BACKENDS:
        raise InputError(f"{operator}: {source}={shown(wanted)} is not a backend; use one of {', '.join(BACKENDS)}")
    if wanted == "torch" or (backend is None and operator not in TRITON_OPERATORS):
        return "torch"
    obstacle = _no_kernel(operator) or (_no_device(device) if wanted == "triton" else None) or obstacle
    if wanted == "auto":
        return "torch" if obstacle or device.type != "cuda" else "triton"
    if obstacle:
        raise InputError(f"{operator}: {source}='triton' but {obstacle}; use 'auto' or 'torch'")
    return wanted


def requested() -> str:
    """The value of `SIGHTLINE_BACKEND`, "auto" if it is not set."""
    return os.environ.get(VARIABLE, "auto")


def obstacle(
    operator: str, q: Tensor, k: Tensor, v: Tensor, *, landmarks: int = 0, filter_size: int = FILTERS[0]
) -> str | None:
    """Why the kernels of `operator` cannot take these tensors on their device, or None if they can."""
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"dtypes are {q.dtype}, {k.dtype}, {v.dtype} (supported: bfloat16, float16 or float32, the same for all)"
    if not HEAD_DIMS[0] <= q.shape[-1] <= HEAD_DIMS[1]:
        return f"head dim is {q.shape[-1]} (supported: {HEAD_DIMS[0]} to {HEAD_DIMS[1]})"
    if v.shape[-1] != q.shape[-1]:
        return f"v has head dim {v.shape[-1]} but q has {q.shape[-1]} (they must agree)"
    if q.numel() == 0 or k.numel() == 0:
        return "there are no tokens"
    if isinstance(landmarks, torch.SymInt):
        return "the number of landmarks is not known"
    if landmarks > LANDMARKS:
        return f"there are {landmarks} landmarks (supported: {LANDMARKS} at most)"
    if filter_size not in FILTERS:
        return f"the filter is {filter_size} wide (supported: {', '.join(map(str, FILTERS))})"
    return device_obstacle(operator, q.device, q.dtype, q.shape[-1])


def device_obstacle(operator: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why the kernels of `operator`, a name in `NEEDED`, cannot run on this device for such tokens, or None."""
    if device.type != "cuda" or head_dim <= widest_head(operator, device.index, dtype):
        return None
    limits = device_limits(device.index)
    if limits is None:
        return "the kernels support NVIDIA GPUs only"
    major, minor, available = limits
    if (major, minor) < CAPABILITY:
        return f"the GPU has compute capability {major}.{minor} (supported: {CAPABILITY[0]}.{CAPABILITY[1]} or higher)"
    need = needed(operator, dtype, head_dim)
    return f"the GPU has {available:,} bytes of shared memory per block ({need:,} needed)"


@torch.compiler.assume_constant_result
def widest_head(operator: str, index: int | None, dtype: torch.dtype) -> int:
    """The largest head dim for which the kernels of `operator` run on a CUDA device, 0 if they do not; cached."""
    key = (operator, index, dtype)
    if key not in _widest:
        limits = device_limits(index)
        available = limits[2] if limits is not None and capable(index) else 0
        _widest[key] = max((d for d, need in NEEDED[operator][dtype].items() if need <= available), default=0)
    return _widest[key]


_widest: dict[tuple[str, int | None, torch.dtype], int] = {}


@torch.compiler.assume_constant_result
def capable(index: int | None) -> bool:
    """Whether a CUDA device is an NVIDIA GPU with the compute capability that the kernels need."""
    limits = device_limits(index)
    return limits is not None and limits[:2] >= CAPABILITY


@torch.compiler.assume_constant_result
def device_limits(index: int | None) -> tuple[int, int, int] | None:
    """The `Limits` of a CUDA device, the current one if `index` is None; None for GPUs of other vendors."""
    if index not in _limits:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
        nvidia = torch.version.hip is None
        shared = getattr(gpu, "shared_memory_per_block_optin", None) or SHARED_MEMORY.get((gpu.major, gpu.minor), SMALL)
        _limits[index] = Limits(gpu.major, gpu.minor, shared) if nvidia else None
    return _limits[index]


_limits: dict[int | None, Limits | None] = {}


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory per block to choose tiles by: those of a GPU, of the current one for meta tensors.

    Without a GPU, where Triton's interpreter runs, the tiles are those of an H200.
    """
    if device.type == "cpu" or not torch.cuda.is_available():
        return LARGE
    limits = device_limits(device.index if device.type == "cuda" else None)
    return LARGE if limits is None else tile_memory(limits)


def tile_memory(limits: tuple[int, int, int]) -> int:
    """Bytes of shared memory per block to choose tiles by on a GPU with these `Limits`.

    GPUs with tensor memory (compute capability 10 and 11) take smaller tiles than their shared memory holds: with those
    of an H200, Triton 3.6 runs out of tensor memory or fails in its pipeliner.
    """
    return min(limits[2], MEDIUM) if limits[0] in (10, 11) else limits[2]


# Bytes of shared memory per block that a GPU must have for the kernels of an operator, forward and backward, by the
# largest head dim they hold for: the smallest size whose tiles fit. `make test-cards` compiles them for every GPU.
NEEDED: dict[str, dict[torch.dtype, dict[int, int]]] = {
    "inline_attention": {
        torch.bfloat16: {128: SMALL},
        torch.float16: {128: SMALL},
        torch.float32: {64: SMALL, 128: MEDIUM},
    },
    "inline_layer": {dtype: {64: SMALL, 128: LARGE} for dtype in DTYPES},  # with the layers of the residual's weights
    "whole_layer": {torch.bfloat16: {128: LARGE}, torch.float16: {128: LARGE}},  # with both projections
    "linear_attention": {
        torch.bfloat16: {128: SMALL},
        torch.float16: {128: SMALL},
        torch.float32: {64: SMALL, 128: 393_216},  # more than any GPU has: backward of wide heads
    },
    "soft_attention": {
        torch.bfloat16: {128: SMALL},
        torch.float16: {128: SMALL},
        torch.float32: {64: SMALL, 128: MEDIUM},
    },
    "headwise_conv": {dtype: {128: SMALL} for dtype in DTYPES},
    "add_norm": {dtype: {2048: SMALL} for dtype in DTYPES},  # by channels
}


def needed(operator: str, dtype: torch.dtype, head_dim: int) -> int:
    """Bytes of shared memory per block that a GPU must have for the kernels of `operator`."""
    return next(need for most, need in NEEDED[operator][dtype].items() if head_dim <= most)


Arguments = ParamSpec("Arguments")
FAST_PATHS: dict[str, Callable[..., bool]] = {}


def fast_path(decide: Callable[Arguments, bool]) -> Callable[Arguments, bool]:
    """Register a function that decides whether to take a fast path; SIGHTLINE_BACKEND=torch makes it return False."""

    @wraps(decide)
    def decision(*args: Arguments.args, **kwargs: Arguments.kwargs) -> bool:
        return requested() != "torch" and decide(*args, **kwargs)

    FAST_PATHS[decide.__name__] = decision
    return decision


@fast_path
def inline_layer(x: Tensor, head_dim: int) -> bool:
    """InLine attention of a layer by one operator that also makes the weights of its residual from the tokens x."""
    return x.numel() > 0 and _kernels("inline_layer", x.device, compute_dtype(x), head_dim)


@fast_path
def whole_layer(x: Tensor, weight: Tensor, head_dim: int, prefix: int) -> bool:
    """InLine attention with both of its projections by one operator: inference on a GPU in half precision, for few
    tokens, where launches take longer than the kernels run."""
    if torch.is_grad_enabled() or prefix > WHOLE_LAYER_PREFIX or x.numel() == 0:
        return False
    if not known(x.shape[0] * x.shape[1] <= WHOLE_LAYER_TOKENS):
        return False
    dtype = compute_dtype(x)
    half = dtype in (torch.bfloat16, torch.float16) and (dtype == weight.dtype or _autocast(x.device))
    return half and _kernels("whole_layer", x.device, dtype, head_dim)


@fast_path
def whole_block(x: Tensor) -> bool:
    """Whether to try a block's first half (the pending sum, the norm, InLine attention, its own sum) as one operator;
    `whole_layer` then decides per layer."""
    if torch.is_grad_enabled() or isinstance(x, torch.fx.Proxy) or torch.jit.is_tracing():
        return False
    if not (x.is_cuda or requested() == "triton") or x.shape[2] > FOLDED:
        return False
    few = known(x.shape[0] * x.shape[1] <= WHOLE_LAYER_TOKENS)
    return few and torch.promote_types(x.dtype, compute_dtype(x)) == x.dtype


@fast_path
def fused_readers(q: Tensor, number: int) -> bool:
    """Agents and first tokens that attend by softmax in the kernels of InLine attention: inference in half
    precision."""
    half, dim = q.dtype in (torch.bfloat16, torch.float16), q.shape[-1]
    rows = max(16, 1 << (number - 1).bit_length()) * max(1, READERS // dim)
    return half and not torch.is_grad_enabled() and max(number, dim) <= READERS and rows <= READER_ROWS


@fast_path
def unprojected_tokens(x: Tensor) -> bool:
    """InLine attention without queries and keys, from the tokens x (B, N, C): on a CPU, for 2 C tokens or more."""
    wide = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    on_cpu = x.device.type == "cpu" and choose("inline_attention", x.device) == "torch"
    if not on_cpu or not wide:
        return False
    return isinstance(x.shape[1], torch.SymInt) or x.shape[1] >= 2 * x.shape[2]  # exported for any size: large ones


@fast_path
def activated_linear(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """A linear layer with its activation as one product: inference in half precision on a GPU."""
    half = x.dtype in (torch.bfloat16, torch.float16) and x.dtype == weight.dtype == bias.dtype
    return half and x.is_cuda and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")


@fast_path
def fused_norm(x: Tensor) -> bool:
    """The gradient of a sum and its layer norm by one operator: compiled training on a GPU."""
    if not torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled() or transformed():
        return False
    if not x.is_cuda or not TRITON_INSTALLED or x.dtype not in DTYPES or compute_dtype(x) not in DTYPES:
        return False
    return x.numel() > 0 and x.shape[2] <= widest_head("add_norm", x.device.index, compute_dtype(x))


@fast_path
def lookup_product(table: Tensor, tokens: Tensor) -> bool:
    """The gradient of a table of few rows as a product with one-hot tokens: compiled training on a GPU."""
    if not torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled() or transformed():
        return False
    if not table.is_cuda or not table.requires_grad or table.dtype not in DTYPES or table.shape[0] > TABLE_ROWS:
        return False
    return tokens.numel() > 0 and capable(table.device.index)


@fast_path
def joined_stripes(grid: tuple[int, int]) -> bool:
    """Stripes down and across a map in one batch: they have one shape if the map is square."""
    return bool(grid[0] == grid[1])


@fast_path
def patch_product(x: Tensor) -> bool:
    """A convolution of patches as one matrix product of them: on a GPU, where cuDNN is slow for patches of 16."""
    return x.is_cuda


@fast_path
def patch_kernel(x: Tensor) -> bool:
    """Patches of a map of any size by a kernel in exported graphs: on a GPU, if no gradient is needed."""
    return TRITON_INSTALLED and x.is_cuda and not torch.is_grad_enabled()


@fast_path
def fused_stem(x: Tensor) -> bool:
    """Convolutions of few channels as products of patches, batch norms folded in inference: on a GPU."""
    return x.is_cuda


@fast_path
def tall_products(a: Tensor, b: Tensor) -> bool:
    """Products of tall matrices whose backward pass transposes small ones only: on a CPU, if a gradient is needed."""
    needed = torch.is_grad_enabled() and not torch.jit.is_tracing() and (a.requires_grad or b.requires_grad)
    return needed and a.device.type == "cpu"


@fast_path
def shifted_products(height: int) -> bool:
    """The local residual of a single grid row, a sequence, as sums of shifted tokens instead of a convolution."""
    return isinstance(height, int) and height == 1


@torch.compiler.assume_constant_result
def transformed() -> bool:
    """Whether torch.export or a transform such as vmap is tracing, which do not support our functions of autograd.

    This runs outside the traced code, where torch 2.11 would take torch.compile for torch.export.
    """
    return torch.compiler.is_exporting() or torch._C._are_functorch_transforms_active()


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype that linear layers compute in for x."""
    return torch.get_autocast_dtype(x.device.type) if _autocast(x.device) else x.dtype


def known(condition: bool) -> bool:
    """Whether a condition on sizes holds for all sizes that a graph is made for.

    Code that torch.compile traces gets a guard instead, and a graph on either side; operators, which are traced later,
    get none.
    """
    if isinstance(condition, bool | Tensor):  # torch.jit has tensors for sizes
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def _kernels(path: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernels of InLine attention by a fast path run for such tokens."""
    if dtype not in NEEDED[path] or not HEAD_DIMS[0] <= head_dim <= HEAD_DIMS[1]:
        return False
    return choose("inline_attention", device, None, device_obstacle(path, device, dtype, head_dim)) == "triton"


def _autocast(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _no_kernel(operator: str) -> str | None:
    if operator not in TRITON_OPERATORS:
        return "there is no Triton kernel for it"
    return None if TRITON_INSTALLED else "Triton is not installed"


def _no_device(device: torch.device) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and device.type == "cpu"
    return None if device.type == "cuda" or interpreted else f"the tensors are on {device}, not on a CUDA device"
