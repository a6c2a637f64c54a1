"""Labeled sequences of bytes in memory, and how they become a batch of ids."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

ROUND = 64  # batches are padded to multiples of this, so that there are few lengths; padding changes no result


@dataclass(frozen=True)
class TokenSet:
    """Concatenated sequences.

    Args:
        values: (total,) uint8, the tokens; their ids are one more, since 0 is padding.
        ends: (sequences + 1,) int64, rising from 0 to total.
        labels: (examples,) int64.
        towers: sequences of an example, 1 or 2.
        cut: sequences that were too long and lost their end.
    """

    values: np.ndarray
    ends: np.ndarray
    labels: np.ndarray
    towers: int = 1
    cut: int = 0

    def __post_init__(self) -> None:
        fits = len(self.ends) == self.towers * len(self.labels) + 1 and self.ends[0] == 0
        if not fits or self.ends[-1] != len(self.values) or (np.diff(self.ends) < 0).any():
            raise ValueError("sequences, offsets and labels do not match; generate the data again")

    @classmethod
    def pack(cls, sequences: Iterable[bytes], labels: Iterable[int], length: int, towers: int = 1) -> "TokenSet":
        """Sequences of bytes, cut to `length` and counted where they are longer."""
        kept, sizes, cut = [], [0], 0
        for sequence in sequences:
            cut += len(sequence) > length
            kept.append(sequence[:length])
            sizes.append(min(len(sequence), length))
        values = np.frombuffer(b"".join(kept), dtype=np.uint8)
        return cls(values, np.cumsum(sizes, dtype=np.int64), np.asarray(list(labels), dtype=np.int64), towers, cut)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every sequence."""
        return np.diff(self.ends)

    @cached_property
    def even(self) -> int:
        """Tokens of all sequences, where they are all as long; else 0."""
        lengths = self.lengths
        return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else 0

    def part(self, start: int, stop: int) -> "TokenSet":
        """The examples from `start` up to `stop`; what was cut stays noted with the whole."""
        first, last = start * self.towers, stop * self.towers
        a, b = int(self.ends[first]), int(self.ends[last])
        return TokenSet(self.values[a:b], self.ends[first : last + 1] - a, self.labels[start:stop], self.towers)

    def take(self, order: np.ndarray) -> "TokenSet":
        """The examples in another order."""
        spans = (order[:, None] * self.towers + np.arange(self.towers)).ravel()
        sizes = self.lengths[spans]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        source = np.repeat(self.ends[spans] - ends[:-1], sizes) + np.arange(int(ends[-1]))
        return TokenSet(self.values[source], ends, self.labels[order], self.towers, self.cut)

    def batch(self, indices: np.ndarray, most: int) -> tuple[Tensor, Tensor]:
        """Ids (B, N), or (B, 2, N) for two towers, padded with 0 behind, and labels (B,).

        Args:
            indices: of the examples.
            most: N is at most this; longer sequences are cut.
        """
        spans = (indices[:, None] * self.towers + np.arange(self.towers)).ravel()
        starts, sizes = self.ends[spans], np.minimum(self.lengths[spans], most)
        longest = max(int(sizes.max(initial=0)), 1)
        width = min(-(-longest // ROUND) * ROUND, max(most, 1))
        shape = (-1, width) if self.towers == 1 else (len(indices), self.towers, width)
        labels = torch.from_numpy(self.labels[indices])
        if self.even == width:  # as images are
            same = self.values.reshape(-1, width)[spans].astype(np.int16) + 1
            return torch.from_numpy(same.reshape(shape)), labels
        places = np.arange(width)
        inside = places < sizes[:, None]
        ids = np.zeros((len(spans), width), dtype=np.int16)
        ids[inside] = self.values[(starts[:, None] + places)[inside]]
        ids[inside] += 1
        return torch.from_numpy(ids.reshape(shape)), labels


def one_pass(tokens: TokenSet, batch: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (ids, labels), each example once; `length` is where sequences are cut."""
    for start in range(0, len(tokens), batch):
        ids, labels = tokens.batch(np.arange(start, min(start + batch, len(tokens))), length)
        yield ids.int(), labels
