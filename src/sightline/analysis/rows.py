"""One row of the attention matrix of each mechanism, from the query and the keys of a window: O(M)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.layers.core import Core
from sightline.layers.inline import InlineCore
from sightline.layers.linear import LinearCore
from sightline.layers.none import NoCore
from sightline.layers.soft import SoftCore
from sightline.layers.softmax import SoftmaxCore
from sightline.ops.feature_maps import apply_feature_map
from sightline.ops.soft.reference import gaussian, landmark_inverse

EPS = 1e-6  # below this the row sum of linear attention is not divided by, as in the operator


def row_of(core: Core, call: Mapping[str, Any], window: int, query: int) -> Tensor:
    """The weights (H, M) that `core`, called with `call`, gives the keys of a window for one of its queries.

    The weights are those of the global term: the 3x3 residual of InLine and the convolution of SOFT come on top.

    Args:
        call: q (windows, N, H, D), k (windows, M, H, D) and the keywords of `Core.forward`.
    """
    q, k = call["q"][window, query], call["k"][window]  # H D, M H D
    mask = call.get("key_mask")
    counts = torch.ones(k.shape[0], dtype=torch.bool, device=k.device) if mask is None else mask[window]
    q, k = q.float(), k.float().masked_fill(~counts[:, None, None], 0)
    if isinstance(core, SoftmaxCore):
        return _softmax(q, k, counts, _bias(call.get("bias"), window, query))
    if isinstance(core, InlineCore | LinearCore):
        fq, fk = (_features(core, t) for t in (q, k))
        return _inline(fq, fk, counts) if isinstance(core, InlineCore) else _linear(fq, fk, counts)
    if isinstance(core, SoftCore):
        return _soft(core, call, window, query, counts)
    if isinstance(core, NoCore):
        return torch.eye(k.shape[0], device=k.device)[query].expand(core.num_heads, -1)
    raise ValueError(f"{type(core).__name__}: this mechanism has no row in sightline.analysis.rows; add one")


def _features(core: InlineCore | LinearCore, x: Tensor) -> Tensor:
    """phi of (..., H, D), which the feature maps take as (batch, tokens, H, D)."""
    flat = x.reshape(1, -1, *x.shape[-2:])
    return apply_feature_map(flat, core.feature_map.phi, core.feature_map.affine).reshape(*x.shape[:-1], -1)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("hd,mhd->hm", q, k)


def _softmax(q: Tensor, k: Tensor, counts: Tensor, bias: Tensor | None) -> Tensor:
    scores = _scores(q, k) * q.shape[-1] ** -0.5
    scores = scores if bias is None else scores + bias
    return scores.masked_fill(~counts, -torch.inf).softmax(-1).nan_to_num()


def _bias(bias: Tensor | None, window: int, query: int) -> Tensor | None:
    """The row (H, M) of a bias that is shared by the windows (H, N, M) or not (windows, H, N, M)."""
    if bias is None:
        return None
    return (bias if bias.ndim == 3 else bias[window])[:, query].float()


def _linear(fq: Tensor, fk: Tensor, counts: Tensor) -> Tensor:
    scores = _scores(fq, fk) * counts
    number = counts.sum().clamp(min=1)
    total = scores.sum(-1, keepdim=True) / number
    total = torch.where(total < 0, total.clamp(max=-EPS), total.clamp(min=EPS))
    return scores / number / total


def _inline(fq: Tensor, fk: Tensor, counts: Tensor) -> Tensor:
    number = counts.sum().clamp(min=1)
    scores = _scores(fq, fk) * counts
    centred = (scores - scores.sum(-1, keepdim=True) / number) * fq.shape[-1] ** -0.5
    return (centred + 1) / number * counts


def _soft(core: SoftCore, call: Mapping[str, Any], window: int, query: int, counts: Tensor) -> Tensor:
    prefix, grid = call.get("prefix", 0), call["grid"]
    q = call["q"][window : window + 1] * core.head_dim**-0.25
    places = q[:, prefix:].masked_fill(~counts[None, prefix:, None, None], 0)
    landmarks = core.landmarks(places, grid).float().transpose(1, 2)  # 1 H m D
    weights = gaussian(q.float().transpose(1, 2), landmarks)  # 1 H N m
    inverse = landmark_inverse(landmarks, core.normalized, core.iterations)
    return (weights[0, :, query : query + 1] @ inverse[0] @ weights[0].transpose(-1, -2))[:, 0] * counts
