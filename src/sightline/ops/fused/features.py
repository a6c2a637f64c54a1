"""What happens before the kernels: feature maps that they do not know, and whether a gradient will be asked for."""

import torch
from torch import Tensor

from sightline.ops.checks import accumulate_dtype
from sightline.ops.feature_maps import AFFINE_MAP, Affine, apply_feature_map, key_features


def kernel_features(
    q: Tensor, k: Tensor, phi: str, affine: Affine | None, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, str]:
    """Queries, keys and the map that the kernels apply: relu_affine, a matrix product, is applied here."""
    if phi != AFFINE_MAP:
        return q, k, phi
    wide, hidden = accumulate_dtype(q.dtype), None if key_mask is None else ~key_mask[:, :, None, None]
    fq = apply_feature_map(q.to(wide), phi, affine).to(q.dtype)
    return fq, key_features(k.to(wide), phi, affine, hidden).to(k.dtype), "identity"


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether backward may follow, which is when the sums are kept for it."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
