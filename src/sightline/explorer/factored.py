"""Calls of blocks that keep the factors of their attention, so that any row costs O(M r) for M keys and r columns."""

from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, CoreCall
from sightline.explorer.kept import Kept
from sightline.layers.core import Core, Factors

FACTORS = 768 << 20  # bytes that all views keep together
NUMBERS = count()  # of calls


@dataclass(frozen=True)
class FactoredCall(CoreCall):
    """A call whose factors are kept, so that a row costs O(M r) and not what makes the factors."""

    kept: Kept[Factors]
    number: int

    def rows(self, window: int, queries: Tensor) -> Tensor:
        factors = self.factors()
        if factors is None:
            return super().rows(window, queries)
        left, right = factors
        return left[window][:, queries.to(left.device)] @ right[window].transpose(-1, -2)

    def factors(self) -> Factors | None:
        by_factors = type(self.core).rows is Core.rows and self.core.has_rows
        return self.kept.get(self.number, self._factors) if by_factors else None

    @torch.no_grad()
    def _factors(self) -> Factors:
        found = self.core.factors(self.q, self.k, self.place)
        assert found is not None
        return found


def keep_factors() -> Kept[Factors]:
    """What the views of a server share."""
    return Kept(FACTORS, lambda pair: sum(t.numel() * t.element_size() for t in pair))


def with_kept_factors(block: BlockCall, kept: Kept[Factors]) -> BlockCall:
    """The same block, whose parts keep their factors."""
    parts = tuple(
        FactoredCall(part.core, part.q, part.k, part.v, part.place, part.positions, kept, next(NUMBERS))
        for part in block.parts
    )
    return replace(block, parts=parts)
