"""SOFT and SOFT++ on a sequence: landmarks of runs of tokens, and a convolution along them."""

from torch import Tensor

from sightline.layers.conv import add_neighbours
from sightline.layers.core import Core, Grid, counted
from sightline.layers.mechanisms.landmarks import KINDS, RunLandmarks
from sightline.layers.mechanisms.sequence.conv1d import HeadTaps
from sightline.layers.mechanisms.soft import KERNELS, soft_rows
from sightline.ops import soft_attention

LANDMARKS = 128  # of the longest sequence, where no ratio is given


class SequenceSoftCore(Core):
    """SOFT. A run without any token that counts has no landmark, so that padding changes nothing.

    Args:
        ratio: tokens from landmark to landmark; 0 for about 128 landmarks over `length`.
        landmarks: where given, at most this many: means of segments of those of `ratio`, one for each of them at most.
        landmark: how landmarks are made: "conv", "pool", "random" or "first"; see `Landmarks`.
        iterations: Newton-Raphson steps of the inverse.
    """

    shared_qk = True
    normalized = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        length: int,
        *,
        ratio: int = 0,
        landmarks: int = 0,
        landmark: str = "conv",
        iterations: int = 20,
    ) -> None:
        super().__init__(dim, num_heads)
        if landmarks < 0 or ratio < 0 or iterations < 1:
            raise ValueError(
                f"soft(ratio={ratio},landmarks={landmarks},iterations={iterations}): give a ratio of at least 1, or 0 "
                f"for about {LANDMARKS} landmarks, a number of landmarks, or 0 to follow the ratio, and a step or more"
            )
        if landmark not in KINDS:
            raise ValueError(f"soft(landmark={landmark}): give one of {', '.join(KINDS)}")
        self.ratio = ratio or max(1, length // LANDMARKS)
        self.iterations = iterations
        self.landmarks = RunLandmarks(self.head_dim, self.ratio, landmarks, landmark)
        self.neighbours = HeadTaps(num_heads, KERNELS.get(self.ratio, 3 if self.ratio < 8 else 9))

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
        q = q * self.head_dim**-0.25
        landmarks = self._landmarks(q, prefix, counted(key_mask, q))
        out = soft_attention(q, v, landmarks, normalized=self.normalized, iterations=self.iterations, key_mask=key_mask)
        return add_neighbours(out, self.neighbours, v, grid=grid, prefix=prefix, key_mask=key_mask, local=local)

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
        counts = counted(key_mask, q)
        q = q * self.head_dim**-0.25
        landmarks = self._landmarks(q, prefix, counts)
        return soft_rows(q, landmarks, queries, counts, self.normalized, self.iterations)

    def _landmarks(self, q: Tensor, prefix: int, counts: Tensor) -> Tensor:
        places, counts = q[:, prefix:], counts[:, prefix:]
        return self.landmarks(places.masked_fill(~counts[:, :, None, None], 0), counts).to(q.dtype)


class SequenceSoftNormCore(SequenceSoftCore):
    """SOFT++: the inverse between the landmarks is normalised by the square roots of their degrees."""

    normalized = True
