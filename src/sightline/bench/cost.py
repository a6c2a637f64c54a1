"""Parameters, multiply-adds and activations of a model at a given input size, without running it."""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
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
    convolutions and softmax attention; linear mechanisms are composed of these on that device. Models of timm that name
    the device of their autocast are traced as if on a CPU, as torch up to 2.11 has none for meta.
    """
    try:
        counter = _count(model, input_size, "meta")
    except RuntimeError:
        with FakeTensorMode():
            counter = _count(model, input_size, "cpu")
    return Cost(sum(p.numel() for p in model.parameters()), counter.flops // 2, counter.activations)


def _count(model: nn.Module, input_size: tuple[int, int, int], device: str) -> "_Counter":
    shadow = _without_data(model, device)
    image = torch.empty(1, *input_size, device=device, dtype=next(shadow.parameters()).dtype)
    with _Counter() as counter:
        shadow(image)
    return counter


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


def _without_data(model: nn.Module, device: str) -> nn.Module:
    """A copy of the model in evaluation mode, with new tensors."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        made = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        memo[id(parameter)] = nn.Parameter(made, requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    return copy.deepcopy(model, memo).eval()
