"""Attention as a product of two thin matrices, W = L R^T, where a mechanism is one: singular values without N x N.

Shape letters: H heads, D head dim, N queries and M keys of a window, m landmarks, r columns of the factors.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.layers.core import Core
from sightline.layers.mechanisms.inline import InlineCore
from sightline.layers.mechanisms.linear import LinearCore
from sightline.layers.mechanisms.soft import SoftCore
from sightline.layers.weights import EPS
from sightline.ops.feature_maps import apply_feature_map
from sightline.ops.soft.reference import gaussian, landmark_inverse


def factors_of(core: Core, call: Mapping[str, Any], window: int) -> tuple[Tensor, Tensor] | None:
    """L (H, N, r) and R (H, M, r) in float64; None where there are no thin factors, as for softmax.

    linear: r = D, phi(q) over its row sum times phi(k). inline: r = D + 1, [phi(q), 1] times
    [s (phi(k) - mean), 1] / M. soft: r = m, P A^+ times P.

    Args:
        call: q (windows, N, H, D), k (windows, M, H, D) and the keywords of `Core.forward`.
    """
    if isinstance(core, SoftCore):
        return _soft(core, call, window)
    if not isinstance(core, InlineCore | LinearCore):
        return None
    q, k, counts = operands(call, window)
    fq, fk = features(core, q), features(core, k) * counts[:, None]
    number = counts.sum().clamp(min=1)
    if isinstance(core, LinearCore):
        total = (fq @ fk.sum(1, keepdim=True).transpose(-1, -2)) / number  # H N 1
        total = torch.where(total < 0, total.clamp(max=-EPS), total.clamp(min=EPS))
        return fq / total, fk / number
    centred = (fk - fk.sum(1, keepdim=True) / number) * counts[:, None] * core.head_dim**-0.5
    even = counts[:, None].expand(*fk.shape[:2], 1).to(fk)
    return torch.cat([fq, torch.ones_like(fq[..., :1])], -1), torch.cat([centred, even], -1) / number


def singular_values(x: Tensor) -> Tensor:
    """Singular values (..., r) of float64 matrices, in falling order.

    LAPACK's fast routine gives NaN for some finite matrices of low rank; those of them come from x^T x, which loses
    values below 1e-8 of the largest.
    """
    values = torch.linalg.svdvals(x)
    if bool(values.isnan().any()) and bool(x.isfinite().all()):
        thin = x if x.shape[-2] >= x.shape[-1] else x.transpose(-1, -2)
        return torch.linalg.eigvalsh(thin.transpose(-1, -2) @ thin).clamp(min=0).sqrt().flip(-1)
    return values


def operands(call: Mapping[str, Any], window: int) -> tuple[Tensor, Tensor, Tensor]:
    """q (H, N, D) and k (H, M, D) in float64, zeros for keys that do not count, and which keys do, (M,)."""
    q, k, mask = call["q"][window].double(), call["k"][window].double(), call.get("key_mask")
    counts = torch.ones(k.shape[0], dtype=torch.bool, device=k.device) if mask is None else mask[window]
    return q.transpose(0, 1), k.masked_fill(~counts[:, None, None], 0).transpose(0, 1), counts


def features(core: InlineCore | LinearCore, x: Tensor) -> Tensor:
    """phi of (H, N, D)."""
    flat = x.transpose(0, 1)[None]  # 1 N H D, as the feature maps take it
    return apply_feature_map(flat, core.feature_map.phi, core.feature_map.affine)[0].transpose(0, 1)


def landmarks_of(core: SoftCore, call: Mapping[str, Any], window: int) -> Tensor:
    """The landmarks (H, m, D) of SOFT, in float64 from the convolution on."""
    q, mask, prefix = call["q"][window : window + 1], call.get("key_mask"), call.get("prefix", 0)
    q = q * core.head_dim**-0.25
    if mask is not None:
        q = q.masked_fill(~mask[window : window + 1, :, None, None], 0)
    return core.landmarks(q[:, prefix:], call["grid"])[0].double().transpose(0, 1)


def _soft(core: SoftCore, call: Mapping[str, Any], window: int) -> tuple[Tensor, Tensor]:
    q, _, counts = operands(call, window)
    landmarks = landmarks_of(core, call, window)
    weights = gaussian(q * core.head_dim**-0.25, landmarks)  # H N m
    return weights @ landmark_inverse(landmarks, core.normalized, core.iterations), weights * counts[:, None]
