"""Which images make a batch, for any number of processes, and the seeds of their augmentation.

Nothing depends on what ran before: the order of an epoch follows from the seed and the epoch, the augmentation of an
image from its position in that order. A run can therefore be stopped anywhere and resume as if it had not been.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import torch

from sightline.util.errors import InputError

Key = tuple[int, int]  # index of an image, seed of its augmentation


def derive(*numbers: int) -> int:
    """A seed of 63 bits from numbers, the same on every machine."""
    digest = blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Placement:
    """The device of a process and its share of the work.

    Args:
        device: of the model.
        batch: images per update, over all processes and micro-batches.
        accumulate: micro-batches per update, one after the other.
        eval_batch: images per evaluation step, over all processes.
        ranks, rank: number of processes, and which of them this is.
        seed: of the run.
    """

    device: torch.device
    batch: int
    accumulate: int = 1
    eval_batch: int = 256
    ranks: int = 1
    rank: int = 0
    seed: int = 0

    def order(self, images: int, repeats: int = 1, length: int | None = None) -> "Order":
        """The batches of a dataset of `images` images."""
        return Order(**vars(self), images=images, repeats=repeats, length=length)

    def evaluation(self, images: int) -> Iterator[range]:
        """The local images of every evaluation step; every process has as many steps, some perhaps empty."""
        local = -(-self.eval_batch // self.ranks)
        for start in range(0, images, local * self.ranks):
            first = min(start + self.rank * local, images)
            yield range(first, min(first + local, images))

    def evaluation_keys(self, images: int) -> Iterator[list[Key]]:
        """The keys of the local images of every evaluation step."""
        return ([(index, 0) for index in local] for local in self.evaluation(images))


@dataclass(frozen=True, kw_only=True)
class Order(Placement):
    """The batches of a training run, as the process of a placement gets them.

    Args:
        images: size of the dataset.
        repeats: how often an image comes in a row (repeated augmentation); a pass keeps its length.
        length: updates per epoch; epochs are cut from consecutive passes. By default an epoch is a pass, and images
            that do not fill a batch are left to the order of another one.
    """

    images: int
    repeats: int = 1
    length: int | None = None

    def __post_init__(self) -> None:
        if self.batch % (self.accumulate * self.ranks):
            raise InputError(
                f"batch.size={self.batch} cannot be divided into {self.accumulate} micro-batches on {self.ranks} "
                f"processes; give a multiple of {self.accumulate * self.ranks}"
            )
        if self.images < self.batch:
            raise InputError(
                f"batch.size={self.batch} is more than the {self.images} examples for training; give a smaller one"
            )

    @property
    def steps(self) -> int:
        """Updates per epoch."""
        return self.length or self.images // self.batch

    @property
    def micro_batch(self) -> int:
        """Images per micro-batch, over all processes."""
        return self.batch // self.accumulate

    @property
    def local(self) -> int:
        """Images per micro-batch in this process."""
        return self.micro_batch // self.ranks

    def slots(self) -> torch.Tensor:
        """The positions within a micro-batch that this process has, (local,).

        A position and its mirror image, micro_batch - 1 - position, stay together, so that images are mixed with the
        same partners whatever the number of processes.
        """
        half, odd = divmod(self.local, 2)
        if odd:
            return torch.arange(self.local) + self.rank * self.local
        front = torch.arange(half) + self.rank * half
        return torch.cat([front, self.micro_batch - 1 - front.flip(0)])

    def sequence(self, epoch: int) -> torch.Tensor:
        """The images of an epoch in their order, (steps * batch,)."""
        whole = self.images // self.batch  # updates of a pass
        first, last = epoch * self.steps, (epoch + 1) * self.steps
        pieces = []
        for number in range(first // whole, -(-last // whole)):
            start, stop = max(first - number * whole, 0), min(last - number * whole, whole)
            pieces.append(self._pass(number)[start * self.batch : stop * self.batch])
        return torch.cat(pieces)

    def _pass(self, number: int) -> torch.Tensor:
        """All images in the order of a pass, (images,)."""
        generator = torch.Generator().manual_seed(derive(self.seed, number))
        order = torch.randperm(self.images, generator=generator)
        return order.repeat_interleave(self.repeats)[: self.images]

    def positions(self, start: int = 0) -> Iterator[torch.Tensor]:
        """The local positions in the sequence, one tensor per micro-batch of an epoch, from update `start` on."""
        slots = self.slots()
        for number in range(start * self.accumulate, self.steps * self.accumulate):
            yield number * self.micro_batch + slots

    def keys(self, epoch: int, start: int = 0) -> Iterator[list[Key]]:
        """The local images of the same micro-batches with the seeds of their augmentation."""
        sequence = self.sequence(epoch)
        for positions in self.positions(start):
            yield [
                (index, derive(self.seed, epoch, position))
                for index, position in zip(sequence[positions].tolist(), positions.tolist(), strict=True)
            ]
