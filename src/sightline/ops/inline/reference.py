"""InLine attention by its covariance form, O(N d^2), and the 3x3 local residual.

Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024), equations 5 and 6. The weights
    w_ij = (s / M) (phi(q_i).phi(k_j) - phi(q_i).mean_k) + 1 / M
of all keys j add up, applied to v, to  mean_v + s phi(q_i) C  with  C = mean(phi(k) v^T) - mean_k mean_v^T.
"""

import torch.nn.functional as F
from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import Grid, accumulate_dtype, is_exporting, is_symbolic
from sightline.ops.feature_maps import Affine, apply_feature_map, hide, key_features
from sightline.ops.inline.product import matmul, moment, sum_tokens


def inline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: str,
    scale: float,
    residual: Tensor | None,
    grid: Grid | None,
    prefix: int,
    key_mask: Tensor | None,
    affine: Affine | None,
) -> Tensor:
    """(B, N, H, D), (B, M, H, D), (B, M, H, E) -> (B, N, H, E)."""
    wide = accumulate_dtype(q.dtype)
    hidden = None if key_mask is None else ~key_mask[:, :, None, None]
    fq = apply_feature_map(q.to(wide), phi, affine)
    fk, fv = key_features(k.to(wide), phi, affine, hidden), hide(v.to(wide), hidden)
    share: Tensor | float = 1 / max(fk.shape[1], 1)
    if key_mask is not None:
        share = 1 / key_mask.sum(1).clamp(min=1).to(wide)[:, None, None, None]  # B 1 1 1
    mean_k, mean_v = sum_tokens(fk) * share, sum_tokens(fv) * share  # B 1 H D
    # Centered before the product, so that large means do not cancel in it.
    centered_k, centered_v = hide(fk - mean_k, hidden), hide(fv - mean_v, hidden)
    covariance = moment(centered_k.transpose(1, 2), centered_v.transpose(1, 2)) * (share * scale)  # B H D E
    out = mean_v + matmul(fq.transpose(1, 2), covariance).transpose(1, 2)  # B N H E
    if residual is not None:
        assert grid is not None
        out = add_local(out, local_residual(fv[:, prefix:], residual.to(wide), grid), prefix)
    return out.to(q.dtype)


def add_local(out: Tensor, local: Tensor, prefix: int) -> Tensor:
    """out (B, prefix + N, ...) plus `local` (B, N, ...) after the prefix, in place unless it is exported."""
    if is_exporting():
        return out + F.pad(local, (0, 0) * (local.ndim - 2) + (prefix, 0))
    out[:, prefix:] += local
    return out


def local_residual(v: Tensor, weight: Tensor, grid: Grid) -> Tensor:
    """Depthwise convolution of the tokens' map, zero padded, with one filter per image and channel.

    v (B, h * w, H, D), weight (B, C, k, k) -> (B, h * w, H, D). The images become channels of one
    channels-last map, so that a single depthwise convolution serves the whole batch. An exported graph for any batch
    cannot have that many groups: it adds up shifted maps.
    """
    batch, tokens, heads, dim = v.shape
    height, width = grid
    if not is_symbolic(*v.shape) and v.numel() == 0:
        return v
    channels, size = batch * heads * dim, weight.shape[-1]
    if is_symbolic(batch):
        maps = F.pad(v.reshape(batch, height, width, heads * dim), (0, 0) + (size // 2,) * 4)
        taps = weight.flatten(2).unsqueeze(1).unsqueeze(1)  # B 1 1 C k * k
        windows = (maps[:, y : y + height, x : x + width] for y in range(size) for x in range(size))
        return sum(part * taps[..., i] for i, part in enumerate(windows)).view(v.shape)  # type: ignore[union-attr]
    if backends.shifted_products(height):  # many times faster than a convolution of one row
        row, taps = F.pad(v.flatten(2), (0, 0, size // 2, size // 2)), weight[:, None, :, size // 2]  # B 1 C k
        return sum(row[:, t : t + tokens] * taps[..., t] for t in range(size)).view(v.shape)  # type: ignore[union-attr]
    stacked = v.reshape(batch, tokens, heads * dim).transpose(0, 1).reshape(1, height, width, channels)
    out = F.conv2d(
        stacked.permute(0, 3, 1, 2),
        weight.reshape(channels, 1, size, size),
        padding=size // 2,
        groups=channels,
    )
    out = out.permute(0, 2, 3, 1).reshape(tokens, batch, heads, dim)
    return out.transpose(0, 1)
