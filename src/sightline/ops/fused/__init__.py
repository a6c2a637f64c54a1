"""Triton kernels of InLine and linear attention, one scheme for both.

`tiles.py` holds what the kernels share, `forward_kernels.py` and `backward_kernels.py` the kernels, `launch.py` how
the work is cut, `program.py` how a planned call is repeated, `operator.py` the torch operators, `weights*.py` the
operator that makes the weights of the local residual. The operators' folders call `attend`, `attend_packed` and
`local_weights`; `obstacle` says what the kernels do not take.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

AVAILABLE = find_spec("triton") is not None
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEAD_DIMS = (8, 128)


def obstacle(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why the kernels cannot take these tensors, or None; the reference takes everything."""
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"dtypes are {q.dtype}, {k.dtype}, {v.dtype} (one of bfloat16, float16, float32 for all)"
    if not HEAD_DIMS[0] <= q.shape[-1] <= HEAD_DIMS[1]:
        return f"head dim is {q.shape[-1]} ({HEAD_DIMS[0]} to {HEAD_DIMS[1]})"
    if v.shape[-1] != q.shape[-1]:
        return f"v has head dim {v.shape[-1]} but q has {q.shape[-1]} (they must agree)"
    if q.numel() == 0 or k.numel() == 0:
        return "there are no tokens"
    return None


if AVAILABLE:
    from sightline.ops.fused.operator import attend, attend_packed
    from sightline.ops.fused.weights import local_weights

__all__ = ["AVAILABLE", "attend", "attend_packed", "local_weights", "obstacle"]
