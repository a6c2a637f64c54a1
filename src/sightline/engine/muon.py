"""timm's Muon with all matrices of one shape updated at once.

Muon makes the momentum of every matrix orthogonal by fifteen small products. One matrix at a time, a model of 80
matrices takes some two thousand launches per update. Here the momenta of the matrices of a shape are one tensor, and on
a GPU the products of all shapes are replayed as one CUDA graph.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from timm.optim import Muon
from timm.optim.muon import _COEFFICIENTS, _is_suitable_for_muon, get_lr_scale, resolve_ns_coefficients
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sightline.engine.recording import capture

Group = dict[str, Any]  # parameters and options, as torch.optim has them
WARM = 3  # updates before the products are recorded


class BatchedMuon(Muon):
    """Muon for matrices and convolutions, AdamW for the rest: the updates of timm's class, except for rounding.

    Its other algorithms and modes, and sharded parameters, are left to timm's class.
    """

    _stacks: "list[Stack] | None" = None
    _products: Callable[[], object] | None = None
    _updates = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update; by timm's class alone if a matrix has no gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._stacks is None:
            self._stacks = [stack for group in self.param_groups for stack in _stacks(group, self.state)]
            self._products, self._updates = None, 0
        parameters = [p for stack in self._stacks for p in stack.parameters]
        gradients = [p.grad for p in parameters]
        given = [gradient for gradient in gradients if gradient is not None]
        if parameters and len(given) == len(parameters):
            torch._foreach_copy_([place for stack in self._stacks for place in stack.gradients], given)
            self._orthogonalize(self._stacks)
            for stack in self._stacks:
                stack.update()
            for p in parameters:
                p.grad = None  # done
        super().step()
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._stacks = None
        super().load_state_dict(state_dict)

    def _orthogonalize(self, stacks: "list[Stack]") -> None:
        def products() -> None:
            for stack in stacks:
                stack.orthogonalize()

        self._updates += 1
        (self._products or products)()
        if self._updates == WARM and all(stack.momentum.is_cuda for stack in stacks):
            with suppress(RuntimeError):  # without a graph, the products are launched one by one
                self._products = capture(products)[0].replay


class Stack:
    """Matrices of one shape, and tensors (n, rows, columns) of their gradients, momenta and directions.

    Args:
        group: has the options.
        parameters: of one shape, on one device.
        state: of the optimizer; the momenta of the parameters become parts of the stack.
    """

    def __init__(self, group: Group, parameters: list[nn.Parameter], state: dict[Any, Any]) -> None:
        self.group, self.parameters = group, parameters
        first, shape = parameters[0], parameters[0].shape
        size = (len(parameters), shape[0], shape[1:].numel())
        self.gradient, self.momentum, self.direction = (first.new_zeros(size) for _ in range(3))
        self.gradients, momenta, self.directions = (
            [part.view(shape) for part in whole] for whole in (self.gradient, self.momentum, self.direction)
        )
        for p, momentum in zip(parameters, momenta, strict=True):
            if "momentum_buffer" in state[p]:
                momentum.copy_(state[p]["momentum_buffer"])
            state[p] |= {"momentum_buffer": momentum, "use_muon": True}
        self.dtype = torch.bfloat16 if first.is_cuda else torch.float32  # few CPUs are fast with bfloat16
        known = resolve_ns_coefficients(group["ns_coefficients"], _COEFFICIENTS)
        self.coefficients = (known + known[-1:] * group["ns_steps"])[: group["ns_steps"]]
        rule = group["adjust_lr_fn"]
        self.scale = get_lr_scale(torch.Size(size[1:]), rule) if rule else 1.0

    def orthogonalize(self) -> None:
        """Update the momenta, and set the directions to orthogonal matrices near them, as Newton and Schulz do it."""
        rate = self.group["momentum"]
        self.momentum.lerp_(self.gradient, 1 - rate)
        ahead = self.gradient.lerp(self.momentum, rate) if self.group["nesterov"] else self.momentum
        x = ahead.to(self.dtype)
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        norm = x.norm(2, dim=(1, 2), keepdim=True) * self.group["safety_factor"]
        x = x / norm.clamp(min=self.group["eps"])
        for a, b, c in self.coefficients:
            square = torch.bmm(x, x.mT)
            square = torch.baddbmm(square, square, square, beta=b, alpha=c)
            x = torch.baddbmm(x, square, x, beta=a)
        self.direction.copy_(x.mT if tall else x).mul_(self.scale)

    def update(self) -> None:
        """Decay the parameters, and take a step."""
        rate, parameters = self.group["lr"], list[Tensor](self.parameters)
        torch._foreach_mul_(parameters, 1 - rate * self.group["weight_decay"])
        torch._foreach_add_(parameters, self.directions, alpha=-rate)


def _stacks(group: Group, state: dict[Any, Any]) -> list[Stack]:
    """The matrices of a group by shape."""
    if group["algo"] != "muon" or group["conv_mode"] != "flatten" or group["scale_eps"] or group.get("use_fallback"):
        return []
    shapes: dict[object, list[nn.Parameter]] = {}
    for p in group["params"]:
        if p.requires_grad and not isinstance(p, DTensor) and group.get("use_muon", _is_suitable_for_muon(p)):
            shapes.setdefault((p.shape, p.dtype, p.device), []).append(p)
    return [Stack(group, parameters, state) for parameters in shapes.values()]
