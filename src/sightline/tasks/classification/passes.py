"""One pass over the images of a split, in order, for evaluation: batches of images and their places in the split."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sightline.data.images import ImageError
from sightline.data.splits import Split
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.preprocess import make_transform

Sample = tuple[Tensor | None, int, str | None]  # image, place, what was wrong


class _Images(Dataset[Sample]):
    def __init__(self, split: Split, card: ModelCard) -> None:
        self.split = split
        self.channels = card.input_size[0]
        self.transform = make_transform(card)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Sample:
        try:
            return self.transform(self.split.image(index, self.channels)), index, None
        except ImageError as error:  # told, not raised: it would lose its form between processes
            return None, index, str(error)


def one_pass(
    split: Split,
    card: ModelCard,
    batch: int,
    workers: int = 0,
    on_broken: Callable[[str], None] | None = None,
    pin: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (images, places) over a split, each image once and as `card` wants it.

    Args:
        batch: images of a batch.
        workers: processes that decode; 0 for none.
        on_broken: hears of images that cannot be read, which are then left out.

    Raises:
        ImageError: an image cannot be read, and `on_broken` is not given.
    """
    loader: Any = DataLoader(
        _Images(split, card), batch, num_workers=workers, collate_fn=_collate, pin_memory=pin, shuffle=False
    )
    for images, places, broken in loader:
        for message in broken:
            if on_broken is None:
                raise ImageError(message)
            on_broken(message)
        if len(places):
            yield images, places


def _collate(samples: Sequence[Sample]) -> tuple[Tensor, Tensor, list[str]]:
    good = [(image, place) for image, place, _ in samples if image is not None]
    images = torch.stack([image for image, _ in good]) if good else torch.empty(0)
    places = torch.tensor([place for _, place in good], dtype=torch.long)
    return images, places, [message for *_, message in samples if message is not None]
