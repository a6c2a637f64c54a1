"""No attention at all: values go straight to the projection. The limit that a fast mechanism is measured against."""

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
    ) -> Tensor:
        return v if local is None else local
