"""One pass over the images of a split, in order, for evaluation: batches of images and their indices."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sightline.data.images import ImageError
from sightline.data.splits import Split
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import make_transform

Sample = tuple[Tensor | None, int, str | None]  # image, index, what was wrong


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
        except ImageError as error:  # returned, not raised: it would lose its form between processes
            return None, index, str(error)


def one_pass(
    split: Split,
    card: ModelCard,
    batch: int,
    workers: int = 0,
    on_broken: Callable[[str], None] | None = None,
    pin: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (images, indices) over a split, each image once, preprocessed as in `card`.

    Args:
        batch: images of a batch.
        workers: processes that decode; 0 for none.
        on_broken: called with a message for every image that cannot be read, which is then left out.

    Raises:
        ImageError: an image cannot be read, and `on_broken` is not given.
    """
    loader = DataLoader(
        _Images(split, card), batch, num_workers=workers, collate_fn=_collate, pin_memory=pin, shuffle=False
    )
    for images, indices, broken in loader:
        for message in broken:
            if on_broken is None:
                raise ImageError(message)
            on_broken(message)
        if len(indices):
            yield images, indices


def _collate(samples: Sequence[Sample]) -> tuple[Tensor, Tensor, list[str]]:
    good = [(image, index) for image, index, _ in samples if image is not None]
    images = torch.stack([image for image, _ in good]) if good else torch.empty(0)
    indices = torch.tensor([index for _, index in good], dtype=torch.long)
    return images, indices, [message for *_, message in samples if message is not None]
