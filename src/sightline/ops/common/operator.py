"""Functions that launch kernels as torch operators, with their gradients and FLOPs.

torch.compile, torch.export, fake tensors and FLOP counters see the registered operator, whose launches become part of
the graph. Eager calls skip torch's dispatcher, which takes longer than small kernels run, and replay recorded launches.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from inspect import signature
from typing import Any, Protocol, get_type_hints

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from sightline.ops.checks import is_traced
from sightline.ops.common.launching import INTERPRETED, replay


class Context(Protocol):
    """The context that `torch.autograd.Function` hands to forward and backward."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    options: tuple[Any, ...]  # our addition: the arguments that are not tensors

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


class Operator:
    """A function of tensors and options that launches kernels, as `torch.ops.sightline.NAME`.

    Args:
        name: of the operator.
        function: its implementation; tensors come first among its arguments, and a tuple of tensors is returned. A
            tuple of one would be a tuple within the results to torch, so the registered operator returns a tensor then.
        flops: their number from the arguments, with shapes for tensors.
        setup: saves what backward needs, as for `torch.library.register_autograd`.
        backward: the gradients of all arguments from those of the results, likewise.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., tuple[Tensor, ...]],
        *,
        flops: Callable[..., int],
        setup: Callable[..., None] | None = None,
        backward: Callable[..., tuple[Tensor | None, ...]] | None = None,
    ) -> None:
        self.function = function
        # Kernels in Triton's interpreter cannot be traced, so the operator is opaque there.
        register: Any = torch.library.custom_op if INTERPRETED else torch.library.triton_op
        self.single = get_type_hints(function)["return"] == tuple[Tensor]
        seen = _first_of(function) if self.single else function
        registered = register(f"sightline::{name}", seen, mutates_args=())
        if INTERPRETED:
            registered.register_fake(seen)
        self.packet = getattr(torch.ops.sightline, name)
        register_flop_formula(self.packet)(lambda *args, out_shape=None, **_: flops(*args))
        self.setup, self.backward = setup, backward
        if setup is not None and backward is not None:
            registered.register_autograd(backward, setup_context=setup)

    def __call__(self, *args: Any) -> Sequence[Tensor]:
        if is_traced(args[0]):
            made = self.packet(*args)
            return (made,) if self.single else made
        if self.setup is not None and needs_gradient(*args):
            return _Eager.apply(*args, self)
        return self.run(*args)

    def run(self, *args: Any) -> Sequence[Tensor]:
        """Without autograd."""
        with _on_device(args[0]):
            return replay(self.function, args)


def _first_of(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """`function` with its one result as a tensor instead of a tuple."""

    @wraps(function)
    def run(*args: Any) -> Tensor:
        return function(*args)[0]

    run.__annotations__ = {**function.__annotations__, "return": Tensor}
    vars(run)["__signature__"] = signature(function).replace(return_annotation=Tensor)
    return run


class _Eager(torch.autograd.Function):
    """An operator with its gradient, in eager mode."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        *inputs, operator = args
        outputs = tuple(operator.run(*inputs))
        operator.setup(ctx, inputs, outputs)
        ctx.operator = operator
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *ctx.operator.backward(ctx, *grads), None


def needs_gradient(*args: object) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in args)


def _on_device(tensor: Tensor) -> AbstractContextManager:
    """The tensor's device as the current one, which Triton launches on."""
    current = not tensor.is_cuda or tensor.device.index == torch.cuda.current_device()
    return nullcontext() if current else torch.cuda.device(tensor.device)
