"""The weights of a compiled model under autocast, cast together.

Autocast casts every weight and bias by a launch of its own, and every gradient back: half of the launches of a small
model. A compiled model casts those of its linear layers by the dozen.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from sightline.layers.core import hooked
from sightline.ops.checks import is_exporting

TOGETHER = 24  # tensors per launch: those of three blocks; a kernel for 100 takes ten seconds to compile


def cast_weights(model: nn.Module, x: Tensor) -> AbstractContextManager[object]:
    """A context in which linear layers have their weights as autocast would cast them, if the model is being compiled.

    Not `torch.func.functional_call`: it would call `model.forward` once more, which others may have wrapped.
    """
    compiling = torch.compiler.is_compiling() and not is_exporting()
    if not compiling or not torch.is_autocast_enabled(x.device.type) or hooked(model):
        return nullcontext()
    return _reparametrize_module(model, _cast(model, torch.get_autocast_dtype(x.device.type)))


def castable(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """The names of the weights of linear layers, in groups that are cast together, the head last."""
    # Adapters, shards and quantized weights have classes of their own, and are left to autocast.
    weights = {
        f"{name}.{key}": value
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        for key, value in module.named_parameters(recurse=False)
        if type(value) is nn.Parameter and value.dtype == torch.float32
    }
    groups = []
    for trained in (True, False):  # a gradient of one would ask for those of all
        names = [name for name, value in reversed(weights.items()) if value.requires_grad is trained]
        groups += [tuple(names[start : start + TOGETHER]) for start in range(0, len(names), TOGETHER)]
    return tuple(groups)


def _cast(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of linear layers in another dtype, by name."""
    cast: dict[str, Tensor] = {}
    for names in model.castable():  # type: ignore[operator]
        weights: list[Any] = [reduce(getattr, name.split("."), model) for name in names]
        # torch 2.11 cannot trace the function without gradients.
        copies = _Cast.apply(dtype, *weights) if torch.is_grad_enabled() else _copies(weights, dtype)
        cast |= dict(zip(names, copies, strict=True))
    return cast


class _Cast(torch.autograd.Function):
    """Float32 tensors in another dtype, by one launch in a compiled graph; likewise their gradients back."""

    @staticmethod
    def forward(ctx, dtype, *tensors):  # type: ignore[no-untyped-def]
        return _copies(tensors, dtype)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        return None, *_copies(grads, torch.float32)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    empty = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    # Not in place: what is written in place in a function of autograd is lost when torch 2.11 compiles it.
    return tuple(torch.ops.aten._foreach_copy.default(empty, list(tensors)))
