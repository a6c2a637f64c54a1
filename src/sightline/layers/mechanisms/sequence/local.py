"""Mechanisms that are those of maps but for a convolution, which runs along the sequence."""

from typing import Any

from sightline.layers.mechanisms.baselines.angular import LinearAngularCore
from sightline.layers.mechanisms.baselines.enhanced import Aggregate, EnhancedCore
from sightline.layers.mechanisms.baselines.focused import FocusedCore
from sightline.layers.mechanisms.baselines.nystromformer import NystromformerCore
from sightline.layers.mechanisms.sequence.conv1d import HeadTaps, SharedTaps, row_conv


class SequenceNystromformerCore(NystromformerCore):
    """Nystromformer; landmarks are means of segments of the sequence anyhow."""

    def __init__(self, dim: int, num_heads: int, length: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        if self.neighbours is not None:
            self.neighbours = HeadTaps(num_heads, options["kernel"])


class SequenceLinearAngularCore(LinearAngularCore):
    """Linear-angular attention."""

    def __init__(self, dim: int, num_heads: int, length: int, *, kernel: int = 3) -> None:
        super().__init__(dim, num_heads, kernel=kernel)
        self.neighbours = HeadTaps(num_heads, kernel) if kernel else None


class SequenceFocusedCore(FocusedCore):
    """Focused linear attention."""

    def __init__(self, dim: int, num_heads: int, length: int, *, power: int = 3, kernel: int = 5) -> None:
        super().__init__(dim, num_heads, power=power, kernel=kernel)
        self.neighbours = SharedTaps(self.head_dim, kernel) if kernel else None


class SequenceEnhancedCore(EnhancedCore):
    """Multi-scale relu linear attention."""

    def __init__(self, dim: int, num_heads: int, length: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        for module in self.modules():
            if isinstance(module, Aggregate):
                module.depthwise = row_conv(dim, module.depthwise.kernel_size[1], bias=False)
