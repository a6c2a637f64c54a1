"""Parameters, multiply-adds and activations of a model at a given input size, without running it."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

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
    with_weights = dict.fromkeys((aten.addmm, aten.mm, aten.convolution), _elements)
    outputs = FlopCounterMode(display=False, custom_mapping=with_weights)
    with FlopCounterMode(display=False) as flops, outputs:
        shadow(image)
    params = sum(p.numel() for p in model.parameters())
    counts = outputs.get_flop_counts()["Global"]
    return Cost(params, flops.get_total_flops() // 2, sum(counts.get(op, 0) for op in with_weights))


def _elements(*shapes: object, out_shape: tuple[int, ...], **options: object) -> int:
    """Elements of the output of an operation, in the place of its FLOPs."""
    return math.prod(out_shape)


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy of the model without data, in evaluation mode."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo).eval()
