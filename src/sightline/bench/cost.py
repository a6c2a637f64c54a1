"""Parameters, multiply-adds and activations of a model at a given input size, without running it on data."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """`macs` are multiply-adds, what papers call FLOPs; `activations` the elements that layers with weights put out."""

    params: int
    macs: int
    activations: int


def measure_cost(model: nn.Module, input_size: tuple[int, int, int]) -> Cost:
    """The cost of one image of `input_size` = (channels, height, width).

    The model is traced on the meta device, so that no memory is taken and any size can be asked for. Matrix products,
    convolutions and softmax attention are counted by torch; linear mechanisms are made of these on that device.
    """
    shadow = copy.deepcopy(model).to("meta").eval().requires_grad_(False)
    image = torch.empty(1, *input_size, device="meta", dtype=next(shadow.parameters()).dtype)
    sizes: list[int] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sizes.append(output.numel())

    for module in shadow.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            module.register_forward_hook(note)
    with FlopCounterMode(display=False) as counter:
        shadow(image)
    params = sum(p.numel() for p in model.parameters())
    return Cost(params, counter.get_total_flops() // 2, sum(sizes))
