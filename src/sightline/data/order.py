"""Which images make a batch, for any number of processes, and the seeds of all that happens to them.

Nothing depends on what ran before: the order of an epoch follows from the seed and the epoch, what happens to an image
from its place in that order. A run that is stopped anywhere can therefore go on as if it had not been.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import torch

Key = tuple[int, int]  # index of an image, seed of its augmentation


def derive(*numbers: int) -> int:
    """A seed of 63 bits from numbers, the same on every machine."""
    digest = blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Order:
    """The batches of a training run, as one of several processes sees them.

    Args:
        images: in the data set.
        batch: images of an update, over all processes and parts.
        parts: that an update is computed in, one after the other.
        ranks, rank: processes, and which of them this is.
        seed: of the run.
        repeats: times that an image comes in a row (repeated augmentation); an epoch keeps its length.
    """

    images: int
    batch: int
    parts: int = 1
    ranks: int = 1
    rank: int = 0
    seed: int = 0
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.batch % (self.parts * self.ranks):
            raise ValueError(
                f"batch.size={self.batch} cannot be shared by {self.ranks} processes x {self.parts} parts; "
                f"give a multiple of {self.parts * self.ranks}"
            )
        if self.images < self.batch:
            raise ValueError(
                f"batch.size={self.batch} is more than the {self.images} examples for training; give a smaller one"
            )

    @property
    def steps(self) -> int:
        """Updates of an epoch; images that do not fill a batch wait for another epoch's order."""
        return self.images // self.batch

    @property
    def part(self) -> int:
        """Images of a part of an update, over all processes."""
        return self.batch // self.parts

    @property
    def local(self) -> int:
        """Images of a part in this process."""
        return self.part // self.ranks

    def slots(self) -> torch.Tensor:
        """The places of a part that this process has, (local,).

        A place and its mirror image, part - 1 - place, stay together, so that images are mixed with the same partners
        whatever the number of processes.
        """
        half, odd = divmod(self.local, 2)
        if odd:
            return torch.arange(self.local) + self.rank * self.local
        front = torch.arange(half) + self.rank * half
        return torch.cat([front, self.part - 1 - front.flip(0)])

    def sequence(self, epoch: int) -> torch.Tensor:
        """The images of an epoch in their order, (images,)."""
        generator = torch.Generator().manual_seed(derive(self.seed, epoch))
        order = torch.randperm(self.images, generator=generator)
        return order.repeat_interleave(self.repeats)[: self.images] if self.repeats > 1 else order

    def places(self, start: int = 0) -> Iterator[torch.Tensor]:
        """The local places in the sequence of every part of every update of an epoch, from update `start` on."""
        slots = self.slots()
        for part in range(start * self.parts, self.steps * self.parts):
            yield part * self.part + slots

    def keys(self, epoch: int, start: int = 0) -> Iterator[list[Key]]:
        """The local images of the same parts with the seeds of their augmentation."""
        sequence = self.sequence(epoch)
        for places in self.places(start):
            yield [
                (index, derive(self.seed, epoch, place))
                for index, place in zip(sequence[places].tolist(), places.tolist(), strict=True)
            ]


@dataclass(frozen=True)
class Place:
    """Where a task runs, and its share of the work.

    Args:
        device: of the model.
        batch, parts: images of an update, and the parts it is computed in.
        eval_batch: images of an evaluation step, over all processes.
        ranks, rank: processes, and which of them this is.
        seed: of the run.
    """

    device: torch.device
    batch: int
    parts: int = 1
    eval_batch: int = 256
    ranks: int = 1
    rank: int = 0
    seed: int = 0

    def order(self, images: int, repeats: int = 1) -> Order:
        """The batches of a data set of `images` images."""
        return Order(images, self.batch, self.parts, self.ranks, self.rank, self.seed, repeats)

    def evaluation(self, images: int) -> Iterator[range]:
        """The local images of every evaluation step; every process has as many steps, some perhaps empty ones."""
        local = -(-self.eval_batch // self.ranks)
        for start in range(0, images, local * self.ranks):
            first = min(start + self.rank * local, images)
            yield range(first, min(first + local, images))
