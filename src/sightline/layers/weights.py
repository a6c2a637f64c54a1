"""What rows of several mechanisms share."""

import torch
from torch import Tensor

EPS = 1e-6  # the mean score of a query is kept so far from zero, as in `sightline.ops.linear_attention`


def normalized(scores: Tensor, counts: Tensor, eps: float = EPS) -> Tensor:
    """Scores (B, H, Q, M), zero for keys that do not count (B, M), over their sum in every row."""
    number = counts.sum(1).clamp(min=1)[:, None, None, None]
    mean = scores.sum(-1, keepdim=True) / number
    mean = torch.where(mean < 0, mean.clamp(max=-eps), mean.clamp(min=eps))
    return scores / number / mean
