"""Devices by name, and mixed precision on them."""

import torch

from sightline.util.errors import InputError
from sightline.util.names import nearest

DEVICES = ("auto", "cpu", "cuda", "mps")
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


def choose_device(name: str = "auto", key: str = "device") -> torch.device:
    """The device called `name`; "auto" is the GPU if there is one.

    Args:
        name: auto, cpu, cuda or mps, or one of several GPUs such as cuda:1.
        key: the option or argument to name in errors.

    Raises:
        InputError: no such device is available here.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if kind not in DEVICES or (number and not number.isdecimal()):
        remedy = nearest("cuda" if kind == "gpu" else name, DEVICES, "give cpu or auto")
        raise InputError(f"{key}: expected one of {', '.join(DEVICES)}; got {name!r}; {remedy}")
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if kind == "auto":
        return torch.device(next(kind for kind in found if found[kind]))
    if not found[kind]:
        raise InputError(f"{key}: {name} cannot be used: torch {torch.__version__} finds none; give cpu or auto")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and int(number) >= count:
        raise InputError(f"{key}: {name} cannot be used: the last device here is {kind}:{count - 1}")
    return torch.device(name)


def usable_precision(device: torch.device, precision: str) -> str:
    """`precision`; "no" in place of "bf16" on a CPU that only imitates it, which takes many times as long."""
    return "no" if device.type == "cpu" and precision == "bf16" and not _cpu_has_bfloat16() else precision


def _cpu_has_bfloat16() -> bool:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except AttributeError:  # a build without oneDNN
        return False


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of a forward pass in "fp16" or "bf16", or in full precision for "no"."""
    return torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST)
