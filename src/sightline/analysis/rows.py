"""One row of the attention matrix of a core, for one query of one window: O(M). The cores define their rows."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.layers.core import Core

KEYWORDS = ("grid", "prefix", "key_grid")
HALVES = (torch.float16, torch.bfloat16)


def row_of(core: Core, call: Mapping[str, Any], window: int, query: int) -> Tensor:
    """The weights (heads, M) that `core`, called with `call`, gives the keys of a window for one of its queries.

    See `rows_of`.
    """
    return rows_of(core, call, window, torch.tensor([query]))[:, 0]


def rows_of(core: Core, call: Mapping[str, Any], window: int, queries: Tensor) -> Tensor:
    """The weights (heads, Q, M) of several queries, by `Core.rows`, in float32 or wider.

    The weights are those of the global term: local terms such as the 3x3 residual of InLine come on top.

    Args:
        call: q (windows, N, H, D), k (windows, M, H, D) and the keywords of `Core.forward`.
        queries: (Q,) places among the N tokens.
    """
    one = slice(window, window + 1)
    q, k, context = (_wide(call[name][one]) for name in ("q", "k", "context"))
    place: dict[str, Any] = {name: call[name] for name in KEYWORDS if name in call}
    for name in ("key_mask", "local"):
        if call.get(name) is not None:
            place[name] = _wide(call[name][one])
    if (bias := call.get("bias")) is not None:  # of softmax: (H, N, M) for all windows alike, or (windows, H, N, M)
        place["bias"] = _wide(bias if bias.ndim == 3 else bias[one])
    if any(t.dtype in HALVES for t in (*core.parameters(), *core.buffers())):
        core = copy.deepcopy(core).float()
    return core.rows(q, k, queries.to(q.device), context=context, **place)[0]


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in HALVES else t
