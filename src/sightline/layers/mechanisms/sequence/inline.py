"""InLine attention on a sequence: the local residual is a window of 3 taps."""

from typing import Any

from sightline.layers.mechanisms.inline import InlineCore, ResidualWeights


class SequenceInlineCore(InlineCore):
    """InLine attention whose residual has 3 weights a channel: the token and its two neighbours."""

    def __init__(self, dim: int, num_heads: int, length: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        if self.residual is not None:
            self.residual = ResidualWeights(dim, num_heads, rows=1)
