"""Linear attention by its definition, O(N d^2)."""

import torch
from torch import Tensor

from sightline.ops.checks import accumulate_dtype
from sightline.ops.feature_maps import Affine, apply_feature_map, hide, key_features


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, phi: str, eps: float, key_mask: Tensor | None, affine: Affine | None
) -> Tensor:
    """out_i = phi(q_i) S / (phi(q_i) . z), with S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)."""
    wide = accumulate_dtype(q.dtype)
    hidden = None if key_mask is None else ~key_mask[:, :, None, None]
    fq = apply_feature_map(q.to(wide), phi, affine)
    fk, fv = key_features(k.to(wide), phi, affine, hidden), hide(v.to(wide), hidden)
    fq, fk, fv = fq.transpose(1, 2), fk.transpose(1, 2), fv.transpose(1, 2)  # B H N D
    # Means instead of sums leave the quotient as it is and keep it in range at any length.
    if key_mask is not None:
        share = 1 / key_mask.sum(1).clamp(min=1).to(wide)[:, None, None, None]  # B 1 1 1
    else:
        share = fk.new_full((1, 1, 1, 1), 1 / max(fk.shape[2], 1))
    state = fk.transpose(-1, -2) @ fv * share  # B H D E
    total = fq @ (fk.sum(2).unsqueeze(-1) * share)  # B H N 1
    total = torch.where(total < 0, total.clamp(max=-eps), total.clamp(min=eps))
    return (fq @ state / total).transpose(1, 2).to(q.dtype)
