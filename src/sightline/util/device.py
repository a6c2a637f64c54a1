"""Devices by name: which there are, and what to say of one that there is not."""

from difflib import get_close_matches

import torch

KINDS = ("auto", "cpu", "cuda", "mps")


def check_device(name: str, key: str) -> None:
    """Refuse a device that does not exist here.

    Args:
        name: auto, cpu, cuda, mps, or one of several, as cuda:1.
        key: what to blame.

    Raises:
        ValueError: there is no such device; the message says why and what to give.
    """
    kind, _, number = name.partition(":")
    if kind not in KINDS or (number and not number.isdecimal()):
        close = ["cuda"] if kind == "gpu" else get_close_matches(name, KINDS, 1, cutoff=0.5)
        near = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{key}: {name!r} is not one of {', '.join(KINDS)}{near}")
    if kind == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda is not None or torch.version.hip is not None
        why = "finds no GPU" if built else "is built without CUDA"
        raise ValueError(f"{key}: {name} cannot be used: torch {torch.__version__} {why}; give cpu or auto")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"{key}: {name} cannot be used: torch {torch.__version__} finds no MPS; give cpu or auto")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and int(number) >= count:
        raise ValueError(f"{key}: {name} cannot be used: the highest number here is {kind}:{count - 1}")
