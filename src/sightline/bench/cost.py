"""Parameters, multiply-adds and activations of a model at a given input size, without running it."""

import copy
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
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
    """Sums over the operations that are run, by torch's formulas.

    On the meta device an operation on tensors like those of an earlier one is not run again: most blocks are alike. Its
    result is then a new tensor of the same shape, strides and dtype, even if the operation makes a view.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.activations = 0
        self._known: dict[Hashable, tuple[int, int, tuple]] = {}  # flops, activations, and the result's metadata

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        key = None if func._schema.is_mutable else _key(func, args, kwargs)
        if key is None or key not in self._known:
            out = func(*args, **kwargs)
            formula = flop_registry.get(func.overloadpacket)
            flops = formula(*args, **kwargs, out_val=out) if formula else 0
            activations = out.numel() if func.overloadpacket in WITH_WEIGHTS else 0
            if key is not None and type(out) is Tensor and out.is_meta:
                self._known[key] = flops, activations, (out.shape, out.stride(), out.dtype)
        else:
            flops, activations, (shape, stride, dtype) = self._known[key]
            out = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        self.flops += flops
        self.activations += activations
        return out


def _key(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> Hashable | None:
    """What the result of an operation on meta tensors depends on; None if that is not known."""
    key: list[object] = [func]
    for arg in (*args, *kwargs.items()):
        parts = arg if isinstance(arg, list | tuple) else (arg,)
        for part in parts:
            if type(part) in (Tensor, nn.Parameter) and part.is_meta:
                key += (part.shape, part.stride(), part.dtype)
            elif isinstance(part, Hashable) and not isinstance(part, Tensor | tuple):
                key.append((type(part), part))
            else:
                return None
        key.append(len(parts))
    return tuple(key)


def _without_data(model: nn.Module, device: str) -> nn.Module:
    """A copy of the model in evaluation mode, with new tensors."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        made = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        memo[id(parameter)] = nn.Parameter(made, requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    return copy.deepcopy(model, memo).eval()
