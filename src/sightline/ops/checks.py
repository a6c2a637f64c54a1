"""What every operator checks before it runs, and the layout of packed batches.

Shape letters: B batch, N query tokens, M key tokens, H heads, D head dim, C = H * D channels.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from numbers import Real
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor

Grid = tuple[int, int]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (int, SymInt)
NUMBERS = (float, int, SymFloat, SymInt, Real)  # the usual ones first: Real, for NumPy's, is slow to ask


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type sums are taken in: float32, or float64 for float64 input."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(device: torch.device) -> AbstractContextManager:
    """Autocast off: it would take an operator's sums in half precision, where they overflow or cancel."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def check_tensor(operator: str, name: str, value: Any) -> None:
    """`value` is a dense tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{operator}: {name} is a {type(value).__name__}; give a torch tensor")
    if value.layout != torch.strided:
        raise ValueError(f"{operator}: {name} is of layout {value.layout}; give a dense tensor")


def is_whole(value: Any) -> bool:
    """Whether it is an integer, or the compiler's symbol for one."""
    return isinstance(value, WHOLE) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number, or the compiler's symbol for one; a tensor is none."""
    return isinstance(value, NUMBERS) and not isinstance(value, bool)


def check_scale(operator: str, scale: Any) -> None:
    """`scale` is a number."""
    if not is_number(scale):
        raise ValueError(f"{operator}: scale={' '.join(repr(scale).split())[:60]}; give a number")


def check_tokens(operator: str, **tensors: Tensor) -> None:
    """Every tensor is (batch, tokens, heads, head_dim), and all agree on batch, heads, dtype and device."""
    (first_name, first), *_ = tensors.items()
    for name, t in tensors.items():
        check_tensor(operator, name, t)
        if t.ndim == 4 and t.shape[-1] == 0:
            raise ValueError(f"{operator}: {name} has shape {tuple(t.shape)}; give a head dim of at least one")
        if t.ndim != 4:
            raise ValueError(
                f"{operator}: {name} has shape {tuple(t.shape)}; give it as (batch, tokens, heads, head_dim)"
            )
        if t.dtype not in DTYPES:
            raise ValueError(f"{operator}: {name} is {t.dtype}; cast it to float16, bfloat16, float32 or float64")
        if t.dtype != first.dtype:
            raise ValueError(
                f"{operator}: {name} is {t.dtype} but {first_name} is {first.dtype}; cast them to one dtype"
            )
        if t.device != first.device:
            raise ValueError(
                f"{operator}: {name} is on {t.device} but {first_name} is on {first.device}; move them to one device"
            )
        if (t.shape[0], t.shape[2]) != (first.shape[0], first.shape[2]):
            raise ValueError(
                f"{operator}: {name} has shape {tuple(t.shape)} but {first_name} has "
                f"{tuple(first.shape)}; batch and heads must agree"
            )


def check_same(operator: str, axis: int, **tensors: Tensor) -> None:
    """All tensors have the same length along `axis` of (batch, tokens, heads, head_dim)."""
    label = ("batch size", "number of tokens", "number of heads", "head dim")[axis]
    (first_name, first), *rest = tensors.items()
    for name, t in rest:
        if t.shape[axis] != first.shape[axis]:
            raise ValueError(
                f"{operator}: {name} has shape {tuple(t.shape)} but {first_name} has "
                f"{tuple(first.shape)}; they need the same {label}"
            )


def check_key_mask(operator: str, mask: Tensor | None, k: Tensor) -> None:
    """`mask` is boolean, (batch, key tokens), true where the key counts."""
    if mask is None:
        return
    check_tensor(operator, "key_mask", mask)
    if mask.dtype != torch.bool:
        raise ValueError(f"{operator}: key_mask is {mask.dtype}; give booleans, true where the key counts")
    if tuple(mask.shape) != (k.shape[0], k.shape[1]):
        raise ValueError(
            f"{operator}: key_mask has shape {tuple(mask.shape)}; give (batch, key tokens) = {(k.shape[0], k.shape[1])}"
        )
    if mask.device != k.device:
        raise ValueError(f"{operator}: key_mask is on {mask.device} but k is on {k.device}; move them to one device")


def check_bias(operator: str, bias: Tensor | None, q: Tensor, k: Tensor) -> None:
    """`bias` is floating point, on the tokens' device, and broadcasts to (batch, heads, tokens, key tokens)."""
    if bias is None:
        return
    check_tensor(operator, "bias", bias)
    if not bias.is_floating_point() or bias.device != q.device:
        raise ValueError(
            f"{operator}: bias is {bias.dtype} on {bias.device}; give numbers to add to the scores, on {q.device} "
            f"(use key_mask to leave keys out)"
        )
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    fits = bias.ndim <= 4 and all(b in (1, f) for b, f in zip(bias.shape[::-1], full[::-1], strict=False))
    if not fits:
        raise ValueError(
            f"{operator}: bias has shape {tuple(bias.shape)}; it must broadcast to "
            f"(batch, heads, tokens, key tokens) = {full}"
        )


def check_grid(operator: str, grid: Grid | None, tokens: int, prefix: int, what: str = "grid") -> None:
    """`grid` = (height, width) covers the tokens after the prefix."""
    if grid is None:
        raise ValueError(f"{operator}: {what}=None with a residual; give (height, width) of the tokens after prefix")
    whole = isinstance(grid, Sequence) and len(grid) == 2 and all(is_whole(side) for side in grid)
    if not whole or min(grid) < 0:
        raise ValueError(f"{operator}: {what}={grid!r} is not (height, width)")
    if grid[0] * grid[1] + prefix != tokens:
        raise ValueError(
            f"{operator}: {what}={grid[0]}x{grid[1]} with prefix={prefix} makes "
            f"{grid[0] * grid[1] + prefix} tokens but there are {tokens}; give the grid of these tokens"
        )


def check_residual(operator: str, residual: Tensor, images: int, v: Tensor) -> None:
    """`residual` is (images, channels, 3, 3) on the tokens' device."""
    check_tensor(operator, "residual", residual)
    channels = v.shape[2] * v.shape[3]
    if tuple(residual.shape) != (images, channels, 3, 3):
        raise ValueError(
            f"{operator}: residual has shape {tuple(residual.shape)}; "
            f"give (batch, channels, 3, 3) = {(images, channels, 3, 3)}"
        )
    if not residual.is_floating_point() or residual.device != v.device:
        raise ValueError(
            f"{operator}: residual is {residual.dtype} on {residual.device}; give floating-point weights on {v.device}"
        )


def lengths(operator: str, cu_seqlens: Tensor, total: int, name: str = "cu_seqlens") -> list[int]:
    """The lengths of the packed sequences whose cumulative ends are `cu_seqlens` = [0, n1, n1 + n2, ...]."""
    if not isinstance(cu_seqlens, Tensor):
        raise ValueError(f"{operator}: {name}={cu_seqlens!r}; give a 1-d int32 tensor [0, n1, n1 + n2, ...]")
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{operator}: {name} is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; "
            f"give a 1-d int32 tensor [0, n1, n1 + n2, ...]"
        )
    ends = cu_seqlens.tolist()
    sizes = [b - a for a, b in pairwise(ends)]
    if ends[0] != 0 or ends[-1] != total or min(sizes) < 0:
        raise ValueError(f"{operator}: {name}={ends} does not rise from 0 to the {total} packed tokens")
    return sizes


def check_packed(operator: str, key_mask: Tensor | None, **tensors: Tensor) -> None:
    """A packed batch is one row of tokens, and needs no mask."""
    for name, t in tensors.items():
        if t.shape[0] != 1:
            raise ValueError(
                f"{operator}: {name} has batch size {t.shape[0]} with cu_seqlens; "
                f"pack the images as (1, total, heads, head_dim)"
            )
    if key_mask is not None:
        raise ValueError(f"{operator}: key_mask with cu_seqlens; drop the masked tokens when packing instead")


def per_sequence(
    function: Callable[..., Tensor],
    sizes: Sequence[Sequence[int]],
    tensors: Sequence[Tensor],
    extra: Sequence[dict] | None = None,
) -> Tensor:
    """Run `function` on each packed sequence and pack the results again.

    `sizes[i]` are the lengths of the sequences in `tensors[i]`; `extra` holds keyword arguments for each
    sequence.
    """
    pieces = [t.split(list(s), dim=1) for t, s in zip(tensors, sizes, strict=True)]
    keywords = extra or [{}] * len(sizes[0])
    return torch.cat([function(*parts, **kw) for *parts, kw in zip(*pieces, keywords, strict=True)], dim=1)
