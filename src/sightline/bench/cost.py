"""Parameters, multiply-adds and activations of a model at a given input size, without running it."""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

WITH_WEIGHTS = (torch.ops.aten.addmm, torch.ops.aten.mm, torch.ops.aten.convolution)


@dataclass(frozen=True)
class Cost:
    """`macs` are multiply-adds, which papers call FLOPs; `activations` are output elements of linear layers and
    convolutions."""

    params: int
    macs: int
    activations: int


def measure_cost(model: nn.Module, input_size: tuple[int, int, int]) -> Cost:
    """The cost of one image of `input_size` = (channels, height, width).

    The model is traced on the meta device, which needs no memory, so any size works. torch counts matrix products,
    convolutions and softmax attention; linear mechanisms are composed of these on that device.
    """
    shadow = _on_meta(model)
    image = torch.empty(1, *input_size, device="meta", dtype=next(shadow.parameters()).dtype)
    with _Counter() as counter:
        shadow(image)
    return Cost(sum(p.numel() for p in model.parameters()), counter.flops // 2, counter.activations)


class _Counter(TorchDispatchMode):
    """Sums over the operations that are run, by torch's formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.activations = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if formula := flop_registry.get(func.overloadpacket):
            self.flops += formula(*args, **kwargs, out_val=out)
        if func.overloadpacket in WITH_WEIGHTS:
            self.activations += out.numel()
        return out


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model without data, in evaluation mode."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo).eval()
