"""No attention at all: values go straight to the projection. The limit that a fast mechanism is measured against."""

import torch
from torch import Tensor

from sightline.layers.core import Core, Grid


class NoCore(Core):
    """Gives v as it is; queries and keys are projected and left unused, as in the network it is the limit of."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        context: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        local: Tensor | None = None,
        key_grid: Grid | None = None,
    ) -> Tensor:
        return v if local is None else local

    def rows(
        self,
        q: Tensor,
        k: Tensor,
        queries: Tensor,
        *,
        context: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        local: Tensor | None = None,
        key_grid: Grid | None = None,
    ) -> Tensor:
        eye = torch.eye(k.shape[1] if local is None else local.shape[1], dtype=q.dtype, device=q.device)
        return eye[queries].expand(q.shape[0], self.num_heads, -1, -1)
