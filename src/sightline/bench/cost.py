"""Parameters, multiply-adds and activations of a model at a given input size, without running it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

aten = torch.ops.aten


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
    outputs: list[int] = []
    with FlopCounterMode(display=False, custom_mapping=_also_sizes(outputs)) as flops:
        shadow(image)
    params = sum(p.numel() for p in model.parameters())
    return Cost(params, flops.get_total_flops() // 2, sum(outputs))


def _also_sizes(outputs: list[int]) -> dict[object, Callable[..., int]]:
    """How to count linear layers and convolutions, so that the elements of their outputs are noted too."""

    def noting(formula: Callable[..., int]) -> Callable[..., int]:
        def count(*shapes: object, out_shape: tuple[int, ...], **options: object) -> int:
            outputs.append(math.prod(out_shape))
            return formula(*shapes, out_val=out_shape, **options)

        return count

    return {op: noting(flop_registry[op]) for op in (aten.addmm, aten.mm, aten.convolution)}


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model without data, in evaluation mode."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo).eval()
