"""Nested states, such as an optimizer's, as flat tensors and JSON, and back: nothing is pickled."""

import torch
from torch import Tensor

State = dict[str, Tensor]
TENSOR, ITEMS, TUPLE, NUMBER = "$tensor", "$items", "$tuple", "$number"
SPECIAL = ("nan", "inf", "-inf")  # JSON has no such numbers


def pack(value: object, prefix: str, tensors: State) -> object:
    """`value` as JSON can hold it; its tensors go into `tensors` under names that begin with `prefix`."""
    if isinstance(value, Tensor):
        tensors[prefix] = value
        return {TENSOR: prefix}
    if isinstance(value, dict):
        return {ITEMS: [[key, pack(item, f"{prefix}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        packed = [pack(item, f"{prefix}/{i}", tensors) for i, item in enumerate(value)]
        return {TUPLE: packed} if isinstance(value, tuple) else packed
    if isinstance(value, float) and str(value) in SPECIAL:
        return {NUMBER: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{prefix}: a {type(value).__name__} cannot be saved")


def unpack(value: object, tensors: State) -> object:
    """The inverse of `pack`."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if TUPLE in value:
        return tuple(unpack(item, tensors) for item in value[TUPLE])
    if NUMBER in value:
        return float(value[NUMBER])
    return {key: unpack(item, tensors) for key, item in value[ITEMS]}


def plain(state: State) -> State:
    """Contiguous tensors on the CPU that share no memory, as safetensors needs them."""
    seen: set[int] = set()
    result = {}
    for key, value in state.items():
        tensor = value.detach().to("cpu").contiguous()
        address = tensor.untyped_storage().data_ptr()
        result[key] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return result


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit by bit, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
