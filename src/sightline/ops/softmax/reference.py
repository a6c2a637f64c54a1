"""Softmax attention through torch's scaled_dot_product_attention."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.ops.checks import is_exporting


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, key_mask: Tensor | None
) -> Tensor:
    """(B, N, H, D), (B, M, H, D), (B, M, H, E) -> (B, N, H, E); a row with all keys masked gives zero."""
    mask = None if key_mask is None else key_mask[:, None, None, :]
    if key_mask is not None:  # a masked score that overflows would make inf - inf
        k, v = (t.masked_fill(~key_mask[:, :, None, None], 0.0) for t in (k, v))
    dtype = q.dtype
    if is_exporting() and q.device.type == "cpu":  # ONNX would take the sums in half precision
        q, k, v = q.float(), k.float(), v.float()
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=scale
    )
    if key_mask is not None:
        out = out.masked_fill(~key_mask.any(1)[:, None, None, None], 0.0)
    out = out.transpose(1, 2).to(dtype)
    # Strides depend on the implementation, which is not yet known in an exported graph.
    return out.clone(memory_format=torch.contiguous_format) if is_exporting() else out
