"""Images with their annotations, read one by one in loader processes; those that cannot be used become messages."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from PIL import ExifTags, Image
from torch.utils.data import DataLoader, Dataset

from sightline.data.images import ImageError, load_image
from sightline.data.loader import Keys, close_loader, start_worker
from sightline.data.order import Key

T = TypeVar("T")
Read = Callable[[int, random.Random], T]  # index and source of randomness -> item; raises ImageError

SKIP = "--data.on_error skip"  # option of `sightline train` that skips what cannot be used
# From upright back to the pixels as stored, by EXIF orientation, for those that turn an image on its side.
TURN_BACK = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


class AnnotationError(ImageError):
    """An annotation that cannot be used; the message is one line that begins with its file."""


class Split(Protocol):
    """The interface of a split."""

    @property
    def notes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...


def load_annotated(path: Path, height: int, width: int) -> Image.Image:
    """The RGB image that belongs to annotations for `height` x `width` pixels.

    That is the upright one, unless its EXIF orientation turns it on its side and only the stored pixels have that size.
    """
    image = load_image(path)
    if height == width or (image.width, image.height) != (height, width):
        return image
    with Image.open(path) as file:
        turn = file.getexif().get(ExifTags.Base.Orientation)
    return image.transpose(TURN_BACK[turn]) if turn in TURN_BACK else image


@dataclass(frozen=True)
class ItemBatch(Generic[T]):
    """The items of a batch, which may differ in size, and messages about those that could not be used."""

    items: list[T]
    broken: tuple[str, ...]


class Items(Dataset[tuple[T | None, list[str]]]):
    """Items of a dataset by (index, seed).

    Args:
        count: how many there are.
        read: gives an item.
        replace: take the next usable item for a broken one, so that training batches keep their size.
    """

    def __init__(self, count: int, read: Read[T], replace: bool) -> None:
        self.count, self.read, self.replace = count, read, replace

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Key) -> tuple[T | None, list[str]]:
        first, seed = key
        broken: list[str] = []
        for index in (*range(first, self.count), *range(first)):
            try:
                return self.read(index, random.Random(seed)), broken
            except ImageError as error:
                broken.append(str(error))
                if not self.replace:
                    break
        return None, broken


def collate(samples: Sequence[tuple[T | None, list[str]]]) -> ItemBatch[T]:
    """A batch as a list."""
    messages = tuple(message for _, broken in samples for message in broken)
    return ItemBatch([item for item, _ in samples if item is not None], messages)


class ItemLoader(Generic[T]):
    """Loads batches of items, with processes that outlive an epoch.

    Args:
        items: what to load.
        workers: processes; 0 loads in the main one.
        broken: collects messages; raises at the first if it is set to "stop".
    """

    def __init__(self, items: Items[T], workers: int, broken: "BrokenImages") -> None:
        self.keys, self.broken, self.whole = Keys(), broken, items.replace
        self.loader = DataLoader(
            items, batch_sampler=self.keys, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0,
            worker_init_fn=start_worker,
        )  # fmt: skip

    def batches(self, keys: Callable[[], Iterator[list[Key]]]) -> Iterator[list[T]]:
        """The items with these keys.

        Raises:
            ImageError: one cannot be used and messages are set to "stop", or there is none to replace it with.
        """
        self.keys.keys = keys
        batch: ItemBatch[T]
        for batch in self.loader:
            self.broken.add(batch.broken)
            if self.whole and not batch.items:
                raise ImageError(f"no usable image to train on: {next(iter(self.broken.messages))}; repair them")
            yield batch.items

    def close(self) -> None:
        """End the loader processes."""
        close_loader(self.loader)


class BrokenImages:
    """Messages about images that cannot be used, each once.

    Args:
        on_error: "stop" or "skip".
        skip: the option that skips them, for messages.
    """

    def __init__(self, on_error: str, skip: str = SKIP) -> None:
        self.on_error, self.skip = on_error, skip
        self.messages: dict[str, None] = {}

    def add(self, messages: Iterable[str]) -> None:
        """Print and keep what is new; raise ImageError instead if `on_error` is "stop"."""
        for message in messages:
            if self.on_error == "stop":
                raise ImageError(f"{message}; repair or remove it, or pass {self.skip}")
            if message not in self.messages:
                self.messages[message] = None
                print(f"skipped: {message}", flush=True)
