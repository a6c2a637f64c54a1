"""Registration of operators with torch, which torch.compile, torch.export, autograd and FLOP counters rely on.

Autograd is registered by hand: `torch.library.register_autograd` reads the schema at every call, which takes longer
than the kernels run.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable)

LIBRARY = torch.library.Library("sightline", "FRAGMENT")


class Context(Protocol):
    """The context that `torch.autograd.Function` hands to forward and backward."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    options: tuple[Any, ...]  # ours: the arguments that are not tensors

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


def implements(name: str) -> Callable[[Function], Function]:
    """Register a function as an operator's implementation: on CUDA, and on a CPU for the interpreter."""

    def register(function: Function) -> Function:
        for key in ("CUDA", "CPU"):
            LIBRARY.impl(name, function, key)
        return function

    return register


def below_autograd() -> AbstractContextManager:
    """A context in which operators are called without their autograd."""
    return torch._C._AutoDispatchBelowAutograd()


def register_gradient(name: str, function: type[torch.autograd.Function]) -> None:
    """Run an operator through `function` if a gradient is needed."""

    def run(*inputs: object) -> object:
        if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
            return function.apply(*inputs)
        with below_autograd():
            return getattr(torch.ops.sightline, name)(*inputs)

    LIBRARY.impl(name, run, "Autograd")


def on_device(tensor: Tensor) -> AbstractContextManager:
    """The tensor's device as the current one, which Triton launches on."""
    current = not tensor.is_cuda or tensor.device.index == torch.cuda.current_device()
    return nullcontext() if current else torch.cuda.device(tensor.device)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow, for which sums are saved."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def empty_like(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Contiguous tensors of these shapes."""
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors)
