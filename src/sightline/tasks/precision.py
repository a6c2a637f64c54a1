"""Mixed precision by the name that a configuration gives it."""

import torch

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of a forward pass: "fp16", "bf16", or "no" for none."""
    return torch.autocast(device.type, AUTOCAST.get(precision), enabled=precision in AUTOCAST)
