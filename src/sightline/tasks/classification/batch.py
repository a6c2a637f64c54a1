"""Batches: images and labels as loaders give them, and as the model takes them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A micro-batch.

    Args:
        images: (B, C, H, W), uint8 from a loader, float and normalized for a model.
        targets: (B,) classes, or (B, classes) probabilities once images are mixed.
        broken: messages about images that could not be read.
    """

    images: Tensor
    targets: Tensor
    broken: tuple[str, ...] = ()

    def to(self, device: torch.device) -> "Batch":
        """On another device; asynchronously from pinned memory."""
        images, targets = (tensor.to(device, non_blocking=True) for tensor in (self.images, self.targets))
        return replace(self, images=images, targets=targets)

    def pin_memory(self) -> "Batch":
        return replace(self, images=self.images.pin_memory(), targets=self.targets.pin_memory())

    def __len__(self) -> int:
        return self.images.shape[0]


class Normalize:
    """uint8 -> float with the mean and deviation of the channels, on the device of the images."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> None:
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1)
        self.std = torch.tensor(std, device=device).view(1, -1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self.mean) / self.std

    def pixels(self, images: Tensor) -> Tensor:
        """Back to the range from 0 to 1."""
        return images * self.std + self.mean
