"""Small datasets decoded once and kept as uint8 in the memory of the device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sightline.data.loader import Keys, close_loader
from sightline.data.order import Key
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.batch import Batch
from sightline.tasks.classification.samples import Samples, eval_transform, make_loader
from sightline.util.errors import FileError

CHUNK = 256  # images decoded at a time


@dataclass(frozen=True)
class Preloaded:
    """Images (N, C, H, W), uint8, and classes (N,) of those that could be read; `broken` names the others."""

    images: Tensor
    targets: Tensor
    broken: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Tensor) -> Batch:
        """A batch of the images at `indices`."""
        return Batch(self.images[indices], self.targets[indices])


def preload(
    samples: Samples, workers: int, device: torch.device, note: Callable[[int, int], None] = lambda done, all: None
) -> Preloaded:
    """Decode all `samples`; `note` gets the number done and the total."""
    keys = Keys()
    keys.keys = lambda: _chunks(len(samples))
    images, targets, broken = [], [], []
    done = 0
    loader = make_loader(samples, keys, workers, pin=False)
    try:
        for batch in loader:
            done += len(batch.targets) + len(batch.broken)
            if len(batch.targets):
                images.append(batch.images.to(device))
                targets.append(batch.targets)
            broken += batch.broken
            note(done, len(samples))
    finally:
        close_loader(loader)
    if not images:
        raise FileError(f"{samples.split.title}: none of its {len(samples)} images can be read; {broken[0]}")
    return Preloaded(torch.cat(images), torch.cat(targets).to(device), tuple(broken))


def _chunks(count: int) -> Iterator[list[Key]]:
    for start in range(0, count, CHUNK):
        yield [(index, 0) for index in range(start, min(start + CHUNK, count))]


def preloading(samples: Samples, card: ModelCard, size: tuple[int, int] | None) -> Samples:
    """`samples` resized and cut to the size that is kept, the card's own by default, with nothing random."""
    kept = card if size is None else replace(card, input_size=(card.input_size[0], *size), crop_pct=1.0)
    if size is None:
        kept = replace(card, crop_pct=1.0)
    return Samples(samples.split, eval_transform(kept), samples.channels)
