"""Evaluation of a segmenter on images of any sizes."""

import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from sightline.tasks.base import Advance
from sightline.tasks.dense.transforms import normalize
from sightline.tasks.segmentation.config import Inference
from sightline.tasks.segmentation.infer import predict
from sightline.tasks.segmentation.metrics import SegmentationResult, confusion
from sightline.tasks.segmentation.model import Card
from sightline.util.device import autocast

Item = tuple[Tensor, Tensor]  # uint8 image (3, h, w), mask (H, W)


def same_sizes(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Runs of items with the sizes of the first of them, so that they fit into one batch."""
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
    card: Card,
    test: Inference | None = None,
    *,
    device: torch.device,
    precision: str = "no",
    reduce: Callable[[Tensor], Tensor] | None = None,
    on_batch: Advance | None = None,
) -> SegmentationResult:
    """Count pixels over all images; the mode of the model is restored afterwards.

    Args:
        model: gives logits.
        batches: lists of images with their masks, which may differ in size.
        card: classes, window size, mean and standard deviation.
        test: how images are evaluated; by default as the card records.
        precision: "no", "fp16" or "bf16" for autocast.
        reduce: sums a tensor over processes; every process must then call this.
        on_batch: called with the number of images after every batch.
    """
    training, start, classes = model.training, time.perf_counter(), len(card.classes)
    counts = torch.zeros(classes, classes, dtype=torch.long, device=device)
    images = torch.zeros((), dtype=torch.long, device=device)
    model.eval()
    try:
        for batch in batches:
            for group in same_sizes(batch):
                pixels = normalize(torch.stack([image for image, _ in group]).to(device), card.mean, card.std)
                masks = torch.stack([mask for _, mask in group]).to(device)
                with autocast(device, precision):
                    found = predict(model, pixels, test or card.head.test, card.input_size[1:], masks.shape[-2:])
                counts += confusion(found, masks, classes)
                images += len(group)
            if on_batch is not None:
                on_batch(len(batch))
    finally:
        model.train(training)
    if reduce is not None:
        counts, images = reduce(counts), reduce(images)
    return SegmentationResult(counts.cpu(), int(images), time.perf_counter() - start)
