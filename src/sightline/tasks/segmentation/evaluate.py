"""Evaluation of a segmenter over images of any sizes, in training and by `sightline eval`."""

import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from sightline.tasks.dense.loading import normalize
from sightline.tasks.segmentation.config import Inference
from sightline.tasks.segmentation.infer import predict
from sightline.tasks.segmentation.metrics import SegmentationResult, confusion
from sightline.util.device import autocast

Item = tuple[Tensor, Tensor]  # uint8 image (3, h, w), mask (H, W)


def same_sizes(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Runs of items that have the sizes of the first of them, so that they fit into one batch."""
    group: list[Item] = []
    for item in items:
        if group and [part.shape for part in item] != [part.shape for part in group[0]]:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[list[Item]],
    classes: int,
    test: Inference,
    size: int | tuple[int, int],
    mean: Iterable[float],
    std: Iterable[float],
    *,
    device: torch.device | str = "cpu",
    precision: str = "no",
    reduce: Callable[[Tensor], Tensor] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> SegmentationResult:
    """Counts of pixels over all images; the mode of the model is restored afterwards.

    Args:
        model: gives logits.
        batches: lists of images with their masks, which may differ in size.
        classes: outputs of the model.
        test, size: how images are evaluated, and the size of a window.
        mean, std: of the channels.
        precision: "no", "fp16" or "bf16" for autocast.
        reduce: sums a tensor over processes; every process must then call this.
        on_batch: called with the number of images after every batch.
    """
    place, training, start = torch.device(device), model.training, time.perf_counter()
    counts = torch.zeros(classes, classes, dtype=torch.long, device=place)
    images = torch.zeros((), dtype=torch.long, device=place)
    means, deviations = tuple(mean), tuple(std)
    model.eval()
    try:
        for batch in batches:
            for group in same_sizes(batch):
                pixels = normalize(torch.stack([image for image, _ in group]).to(place), means, deviations)
                masks = torch.stack([mask for _, mask in group]).to(place)
                with autocast(place, precision):
                    found = predict(model, pixels, test, size, masks.shape[-2:])
                counts += confusion(found, masks, classes)
                images += len(group)
            if on_batch is not None:
                on_batch(len(batch))
    finally:
        model.train(training)
    if reduce is not None:
        counts, images = reduce(counts), reduce(images)
    return SegmentationResult(counts.cpu(), int(images), time.perf_counter() - start)
