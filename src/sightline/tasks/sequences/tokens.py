"""Labeled sequences of bytes in memory, how they become a batch of ids, and their cache."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes
from torch import Tensor

from sightline.util.files import reason, write_bytes
from sightline.util.text import say

ROUND = 64  # batches are padded to multiples of this, so that there are few lengths; padding changes no result
COMMON = 0.9  # batches are padded to one length if half of them would have so much of it by themselves

Note = Callable[[str, int, int], None]  # reports progress: what, done, of how many


def quiet(what: str, done: int, total: int) -> None:
    """Report no progress."""


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

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every sequence."""
        return np.diff(self.ends)

    @cached_property
    def even(self) -> int:
        """Tokens of all sequences, where they are all as long; else 0."""
        return int(self.lengths[0]) if len(self) and (self.lengths == self.lengths[0]).all() else 0

    def part(self, start: int, stop: int) -> "TokenSet":
        """The examples from `start` up to `stop`; what was cut stays noted with the whole."""
        first, last = start * self.towers, stop * self.towers
        a, b = int(self.ends[first]), int(self.ends[last])
        return TokenSet(self.values[a:b], self.ends[first : last + 1] - a, self.labels[start:stop], self.towers)

    def shuffled(self, seed: int) -> "TokenSet":
        """The examples, of one tower, in a random order."""
        order = np.random.default_rng(seed).permutation(len(self))
        sequences = (self.values[self.ends[i] : self.ends[i + 1]].tobytes() for i in order)
        return TokenSet.pack(sequences, self.labels[order], int(self.lengths.max(initial=0)))

    def common_width(self, batch: int, most: int) -> int | None:
        """N of all batches of so many examples where it costs little, as most have a sequence about as long as the
        longest; else None. Models are faster if N never changes.

        Args:
            batch: examples of a batch.
            most: longer sequences are cut.
        """
        sizes = np.minimum(self.lengths, most)
        longest = int(sizes.max(initial=0))
        usual = np.quantile(sizes, 0.5 ** (1 / (batch * self.towers))) if len(self) else 0  # half of them reach it
        return self._width(longest, most) if usual >= COMMON * longest else None

    def batch(self, indices: np.ndarray, most: int, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Ids (B, N), or (B, 2, N) for two towers, padded with 0 behind, and labels (B,).

        Args:
            indices: of the examples.
            most: N is at most this; longer sequences are cut.
            width: N, where it is the `common_width`.
        """
        spans = (indices[:, None] * self.towers + np.arange(self.towers)).ravel()
        starts, sizes = self.ends[spans], np.minimum(self.lengths[spans], most)
        width = width or self._width(int(sizes.max(initial=0)), most)
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

    @staticmethod
    def _width(longest: int, most: int) -> int:
        return min(-(-max(longest, 1) // ROUND) * ROUND, max(most, 1))


class DeviceTokens:
    """Sequences of one length on a device, such as images: a batch is gathered there.

    Args:
        tokens: with `even`, of one tower.
    """

    def __init__(self, tokens: TokenSet, device: torch.device) -> None:
        self.values = torch.tensor(tokens.values.reshape(len(tokens), tokens.even), device=device)
        self.labels = torch.tensor(tokens.labels, device=device)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Ids (B, N) and labels (B,) of the examples with these indices, (B,)."""
        return self.values[indices].int() + 1, self.labels[indices]


def cached(path: Path, make: Callable[[], TokenSet], examples: int, tokens: int, classes: int) -> TokenSet:
    """The set in a safetensors file; if it is missing or damaged, it is made and written.

    A cache that cannot be written gives a message, and the set is used all the same.

    Args:
        examples, tokens, classes: of what `make` gives; a file with others is damaged too.
    """
    if path.is_file():
        try:
            arrays = load_file(path)
            found = TokenSet(arrays["values"], arrays["ends"], arrays["labels"])
            if _is_whole(found, examples, tokens, classes):
                return found
        except (OSError, KeyError, ValueError, SafetensorError):
            pass
        say(f"{path}: damaged; made again")
    made = make()
    try:
        write_bytes(path, to_bytes({"values": made.values, "ends": made.ends, "labels": made.labels}))
    except OSError as error:
        say(f"{path}: could not be kept for the next time ({reason(error)})")
    return made


def _is_whole(found: TokenSet, examples: int, tokens: int, classes: int) -> bool:
    values, ends, labels = found.values, found.ends, found.labels
    return bool(
        (values.dtype, ends.dtype, labels.dtype) == (np.uint8, np.int64, np.int64)
        and (values.ndim, ends.shape, labels.shape) == (1, (examples + 1,), (examples,))
        and ends[0] == 0
        and ends[-1] == len(values)
        and (found.lengths >= 0).all()
        and values.max(initial=0) < tokens
        and labels.min() >= 0
        and labels.max() < classes
    )
