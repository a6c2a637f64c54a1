"""One pass over a token set, for evaluation outside a run."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from sightline.tasks.sequences.tokens import TokenSet


def one_pass(tokens: TokenSet, batch: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (ids, labels), each example once; `length` is where sequences are cut."""
    for start in range(0, len(tokens), batch):
        ids, labels = tokens.batch(np.arange(start, min(start + batch, len(tokens))), length)
        yield ids.int(), labels
