"""Patches of a map that do not overlap, for exported graphs whose sizes are symbols.

torch's compiler divides by the symbols to index each element of a padded and rearranged map, which takes longer than
the copy itself. A program of the kernel has one row of the map.
"""

from torch import Tensor

from sightline import backend
from sightline.ops.checks import Grid

if backend.TRITON_INSTALLED:
    from sightline.ops.patches import operator


def gather_patches(x: Tensor, grid: Grid, size: tuple[int, int], by_column: bool = False) -> Tensor:
    """Tokens (B, h * w, C), contiguous, of the grid (h, w) -> (B, patches, numbers of a patch by row, column, channel).

    Patches at the far edges are padded with zeros. `by_column` has the columns of a patch before its rows.
    """
    return operator.gather(x, *grid, *size, by_column)[0]


__all__ = ["gather_patches"]
