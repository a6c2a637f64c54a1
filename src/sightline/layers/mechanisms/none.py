"""No attention at all: values go straight to the projection. The speed limit for any mechanism."""

import torch
from torch import Tensor

from sightline.layers.core import Core, Place


class NoCore(Core):
    """Returns v; queries and keys are projected and left unused, as in the network whose limit it is."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        return v if place.local is None else place.local

    def rows(self, q: Tensor, k: Tensor, queries: Tensor, place: Place) -> Tensor:
        """The identity; zero if the keys lie on another grid, where the local values are all there is."""
        if place.local is not None:
            return q.new_zeros(q.shape[0], self.num_heads, len(queries), k.shape[1])
        eye = torch.eye(k.shape[1], dtype=q.dtype, device=q.device)
        return eye[queries].expand(q.shape[0], self.num_heads, -1, -1)

    def local_term(self, v: Tensor, place: Place) -> Tensor | None:
        return place.local
