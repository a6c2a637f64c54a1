"""The toy of Fig. 1 of the InLine paper: d = 2, four keys, four collinear queries, and the scores it shows.

Every printed score of softmax and InLine is met to 0.01 by the scales between 0.670 and 0.692. The default
scale of the operators, d ** -0.5 = 0.707, meets those of the first three queries and is off by up to 0.015
on the fourth: the figure was made with some other scale, or from a fourth query other than the one printed.
Linear attention has no scale.
"""

import torch
from torch import Tensor

KEYS = torch.tensor([[0.62, 1.85], [1.02, 1.02], [1.95, 0.65], [1.83, 0.30]]).reshape(1, 4, 1, 2)
QUERIES = torch.tensor([[0.40, 0.72], [0.70, 1.25], [0.95, 1.67], [1.13, 2.05]]).reshape(1, 4, 1, 2)
IDENTITY = torch.eye(4).reshape(1, 4, 1, 4)  # as v, it makes the output the matrix of scores
SCALE = 0.68

SOFTMAX = torch.tensor(
    [[0.31, 0.23, 0.25, 0.20], [0.36, 0.22, 0.25, 0.17], [0.41, 0.20, 0.24, 0.15], [0.44, 0.19, 0.23, 0.13]]
)
LINEAR = torch.tensor([[0.32, 0.23, 0.25, 0.19]] * 4)
INLINE = torch.tensor(
    [[0.31, 0.23, 0.25, 0.20], [0.35, 0.22, 0.26, 0.17], [0.39, 0.21, 0.26, 0.14], [0.42, 0.21, 0.26, 0.12]]
)


def assert_shows(scores: Tensor, printed: Tensor) -> None:
    """`scores` (1, N, 1, 4) are the printed ones to 0.01."""
    torch.testing.assert_close(scores[0, :, 0], printed, rtol=0, atol=0.01)
