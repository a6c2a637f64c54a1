"""Validation of an operator's arguments, and the layout of packed batches.

Shape letters: B batch, N query tokens, M key tokens, H heads, D head dim, C = H * D channels.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from numbers import Real
from typing import NoReturn

import torch
from torch import SymFloat, SymInt, Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from sightline.util.errors import InputError, shown

Grid = tuple[int, int]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (int, SymInt)
NUMBERS = (float, int, SymFloat, SymInt, Real)  # the usual ones first: the check against Real, for NumPy's, is slow


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: float32, or float64 for float64 input."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(device: torch.device) -> AbstractContextManager:
    """Autocast off: it would take an operator's sums in half precision, where they overflow or cancel."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def reject(operator: str, message: str) -> NoReturn:
    raise InputError(f"{operator}: {message}")


def is_whole(value: object) -> bool:
    """Whether it is an integer, or what a compiler has for one."""
    return (isinstance(value, WHOLE) and not isinstance(value, bool)) or _is_traced_size(value)


def is_symbolic(*sizes: int) -> bool:
    """Whether a size is a symbol of torch.export or torch.jit.trace: the graph is for any value, so no branch may
    depend on it."""
    return any(isinstance(size, SymInt) or _is_traced_size(size) for size in sizes)


def is_traced(tensor: Tensor) -> bool:
    """Whether torch has to see every operation: for the compiler, a mode, a transform or a tensor subclass."""
    return (
        torch.compiler.is_compiling()
        or type(tensor) not in (Tensor, torch.nn.Parameter)
        or _get_current_dispatch_mode() is not None
        or torch._C._are_functorch_transforms_active()
    )


def is_exporting() -> bool:
    """Whether torch.export is tracing. In torch 2.11, torch's own function is also true inside torch.compile."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def ceil_div(size: int, by: int) -> int:
    """size / by, rounded up; in a form that torch.export simplifies if it is nested."""
    return (size - 1) // by + 1 if by != 1 else size


def padding(size: int, by: int) -> int:
    """What is missing from `size` to a multiple of `by`."""
    return ceil_div(size, by) * by - size if by != 1 else 0


def is_number(value: object) -> bool:
    """Whether it is a real number, or what a compiler has for one; a tensor is not one."""
    return (isinstance(value, NUMBERS) and not isinstance(value, bool)) or _is_traced_size(value)


def _is_traced_size(value: object) -> bool:
    """torch.jit.trace has tensors for sizes and what is computed from them."""
    return torch.jit.is_tracing() and isinstance(value, Tensor) and value.ndim == 0


def check_tensor(operator: str, name: str, value: object) -> None:
    """`value` is a dense tensor."""
    if not isinstance(value, Tensor):
        reject(operator, f"{name} is a {type(value).__name__}; give a torch tensor")
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else value.layout
        reject(operator, f"{name} has layout {layout}; give a dense tensor")


def as_number(operator: str, name: str, value: float) -> float:
    """A real number as a float, or the compiler's symbol for one; fractions and NumPy's numbers are taken too."""
    if isinstance(value, float):
        return value
    try:
        if is_number(value):
            return float(value)
    except OverflowError:
        pass
    return reject(operator, f"{name}={shown(value)}; give a number that a float can hold")


def check_tokens(operator: str, **tensors: Tensor) -> None:
    """Every tensor is (batch, tokens, heads, head_dim), and all agree on batch, heads, dtype and device."""
    (first_name, first), *_ = tensors.items()
    for name, t in tensors.items():
        check_tensor(operator, name, t)
        shape = tuple(t.shape)
        if t.ndim != 4:
            reject(operator, f"{name} has shape {shape}; give it as (batch, tokens, heads, head_dim)")
        if shape[-1] == 0:
            reject(operator, f"{name} has shape {shape}; give a head dim of at least one")
        if t.dtype not in DTYPES:
            reject(operator, f"{name} is {t.dtype}; cast it to float16, bfloat16, float32 or float64")
        if t.dtype != first.dtype:
            reject(operator, f"{name} is {t.dtype} but {first_name} is {first.dtype}; cast them to one dtype")
        _check_device(operator, name, t, first_name, first)
        if (shape[0], shape[2]) != (first.shape[0], first.shape[2]):
            both = f"{name} has shape {shape} but {first_name} has {tuple(first.shape)}"
            reject(operator, f"{both}; batch and heads must agree")


def check_same(operator: str, axis: int, **tensors: Tensor) -> None:
    """All tensors have the same length along `axis` of (batch, tokens, heads, head_dim)."""
    label = ("batch size", "number of tokens", "number of heads", "head dim")[axis]
    (first_name, first), *rest = tensors.items()
    for name, t in rest:
        if t.shape[axis] != first.shape[axis]:
            both = f"{name} has shape {tuple(t.shape)} but {first_name} has {tuple(first.shape)}"
            reject(operator, f"{both}; they need the same {label}")


def check_key_mask(operator: str, mask: Tensor | None, k: Tensor) -> None:
    """`mask` is boolean, (batch, key tokens), true where the key counts."""
    if mask is None:
        return
    check_tensor(operator, "key_mask", mask)
    expected = (k.shape[0], k.shape[1])
    if mask.dtype != torch.bool:
        reject(operator, f"key_mask is {mask.dtype}; give booleans, true where the key counts")
    if tuple(mask.shape) != expected:
        reject(operator, f"key_mask has shape {tuple(mask.shape)}; give (batch, key tokens) = {expected}")
    _check_device(operator, "key_mask", mask, "k", k)


def check_bias(operator: str, bias: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """`bias` is floating point, on the tokens' device, and broadcasts to (batch, heads, tokens, key tokens).

    Returns:
        It with an entry for every pair of tokens, since torch does not broadcast a bias of one element.
    """
    check_floating(operator, "bias", bias, q.device, "numbers to add to the scores (key_mask leaves keys out)")
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if bias.ndim > 4 or any(b not in (1, f) for b, f in zip(bias.shape[::-1], full[::-1], strict=False)):
        expected = f"it must broadcast to (batch, heads, tokens, key tokens) = {full}"
        reject(operator, f"bias has shape {tuple(bias.shape)}; {expected}")
    pairs = full[2:]
    return bias if tuple(bias.shape[-2:]) == pairs else bias.expand(*bias.shape[:-2], *pairs).contiguous()


def check_grid(operator: str, grid: Grid | None, tokens: int, prefix: int, what: str = "grid") -> None:
    """`grid` = (height, width) covers the tokens after the prefix."""
    if grid is None:
        reject(operator, f"{what}=None with a residual; give (height, width) of the tokens after prefix")
    if not isinstance(grid, Sequence) or len(grid) != 2 or not all(is_whole(side) and side >= 0 for side in grid):
        reject(operator, f"{what}={shown(grid)} is not (height, width)")
    total = grid[0] * grid[1] + prefix
    if total != tokens:
        made = f"{what}={grid[0]}x{grid[1]} with prefix={prefix} makes {total} tokens"
        reject(operator, f"{made} but there are {tokens}; give the grid of these tokens")


def check_residual(operator: str, residual: Tensor, images: int, v: Tensor) -> None:
    """`residual` is (images, channels, 3, 3) on the tokens' device."""
    check_floating(operator, "residual", residual, v.device, "floating-point weights")
    expected = (images, v.shape[2] * v.shape[3], 3, 3)
    if tuple(residual.shape) != expected:
        reject(operator, f"residual has shape {tuple(residual.shape)}; give (batch, channels, 3, 3) = {expected}")


def lengths(operator: str, cu_seqlens: Tensor, total: int, name: str = "cu_seqlens") -> list[int]:
    """The lengths of the packed sequences whose cumulative ends are `cu_seqlens` = [0, n1, n1 + n2, ...]."""
    expected = "give a 1-d int32 tensor [0, n1, n1 + n2, ...]"
    if not isinstance(cu_seqlens, Tensor):
        reject(operator, f"{name}={shown(cu_seqlens)}; {expected}")
    check_tensor(operator, name, cu_seqlens)
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        reject(operator, f"{name} is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; {expected}")
    if cu_seqlens.device.type == "meta":
        reject(operator, f"{name} is on meta, where it has no values; {expected}")
    ends = cu_seqlens.tolist()
    sizes = [b - a for a, b in pairwise(ends)]
    if ends[0] != 0 or ends[-1] != total or min(sizes) < 0:
        reject(operator, f"{name}={shown(ends)}; it must rise from 0 to {total}, the number of packed tokens")
    return sizes


def check_packed(operator: str, key_mask: Tensor | None, **tensors: Tensor) -> None:
    """A packed batch is one row of tokens, and needs no mask."""
    for name, t in tensors.items():
        if t.shape[0] != 1:
            expected = "pack the images as (1, total, heads, head_dim)"
            reject(operator, f"{name} has batch size {t.shape[0]} with cu_seqlens; {expected}")
    if key_mask is not None:
        reject(operator, "key_mask with cu_seqlens; drop the masked tokens when packing instead")


def per_sequence(
    function: Callable[..., Tensor],
    sizes: Sequence[Sequence[int]],
    tensors: Sequence[Tensor],
    extra: Sequence[Mapping[str, object]] | None = None,
) -> Tensor:
    """Run `function` on each packed sequence and pack the results again.

    `sizes[i]` are the lengths of the sequences in `tensors[i]`; `extra` holds keyword arguments for each
    sequence.
    """
    pieces = [t.split(list(s), dim=1) for t, s in zip(tensors, sizes, strict=True)]
    keywords = extra or [{}] * len(sizes[0])
    return torch.cat([function(*parts, **kw) for *parts, kw in zip(*pieces, keywords, strict=True)], dim=1)


def _check_device(operator: str, name: str, t: Tensor, other_name: str, other: Tensor) -> None:
    if t.device != other.device:
        both = f"{name} is on {t.device} but {other_name} is on {other.device}"
        reject(operator, f"{both}; move them to one device")


def check_floating(operator: str, name: str, t: Tensor, device: torch.device | None, expected: str) -> None:
    """`t` is a dense tensor of real numbers on `device`, the tokens'; on any if it is None."""
    check_tensor(operator, name, t)
    if not t.is_floating_point() or t.device != (device or t.device):
        where = "" if device is None else f" on {device}"
        reject(operator, f"{name} is {t.dtype} on {t.device}; give {expected}{where}")
