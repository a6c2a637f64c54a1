"""InLine attention straight from the tokens, when phi is the identity and q, k, v are projections of them.

The operator then needs neither q nor k. With the centered cross moment S = mean(v x^T) - mean_v mean_x^T of a head,
    C^T = S Wk^T    and    s q C = x (s C^T Wq)^T + s C^T bq,
so the two projections are applied to a d x d matrix instead of N tokens, the bias of k cancels, and the tokens take
part in four plain products of size N x C x C: those of a block without attention. Faster on a CPU, where such products
run at full speed and products of N x d x d do not.

The moment is not centered before the product as the reference does; the tokens of a block come out of a layer norm,
whose means are small.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from sightline import backend as backends
from sightline.ops.checks import Grid
from sightline.ops.inline.product import matmul, mean_token, moment
from sightline.ops.inline.reference import add_local, local_residual

PLAIN = (Tensor, nn.Parameter, FakeTensor)  # the last in torch.export


def prefers_tokens(x: Tensor, qkv: nn.Linear) -> bool:
    """Whether to start from the tokens x (B, N, C). A projection with an adapter or quantized weights is called."""
    plain = type(qkv) is nn.Linear and type(qkv.weight) in PLAIN
    return plain and backends.unprojected_tokens(x)


def inline_from_tokens(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    num_heads: int,
    residual: Tensor | None,
    grid: Grid,
    prefix: int = 0,
) -> Tensor:
    """Tokens (B, N, C) and the packed projection, weight (3C, C) and bias (3C,) -> mixed values (B, N, C)."""
    batch, tokens, dim = x.shape
    heads = (num_heads, dim // num_heads)
    w_q, w_k, _ = weight.unflatten(0, (3, *heads)).unbind(0)  # H D C
    to_v = weight[2 * dim :], None if bias is None else bias[2 * dim :]
    v, mean_x = F.linear(x, *to_v), mean_token(x)
    mean_v = F.linear(mean_x, *to_v)
    cross = moment(v, x) / tokens - mean_v.unsqueeze(2) * mean_x.unsqueeze(1)
    per_head = cross.view(batch, *heads, dim).transpose(0, 1).reshape(num_heads, -1, dim)  # H BD C
    covariance = torch.bmm(per_head, w_k.transpose(1, 2)) * heads[1] ** -0.5  # H BD D, transposed
    mix = torch.bmm(covariance, w_q).view(num_heads, batch, heads[1], dim).permute(1, 3, 0, 2).reshape(batch, dim, dim)
    offset = mean_v
    if bias is not None:
        shift = (covariance * bias[:dim].view(num_heads, 1, -1)).sum(-1).view(num_heads, batch, heads[1])
        offset = mean_v + shift.transpose(0, 1).reshape(batch, dim)
    out = matmul(x, mix) + offset.unsqueeze(1)
    if residual is not None:
        out = add_local(out, local_residual(v[:, prefix:].unflatten(-1, heads), residual, grid).flatten(2), prefix)
    return out
