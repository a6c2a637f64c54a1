"""Metrics of classification as pure functions in two steps: statistics of a batch, which add up, then scores.

    total = statistics(logits, labels)
    total = total + statistics(more_logits, more_labels)
    scores(total)["top1"]

Statistics are sums, so those of batches and of processes are added in any order and every image counts once. Accuracies
and the calibration error are in percent. Shape letters: B images, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15  # of the calibration error
NO_LABEL = -1  # an image that does not count: padding, or without a valid label
MAX_CONFUSION = 2048  # classes up to which the confusion matrix is kept


@dataclass(frozen=True)
class Statistics:
    """Sums over images, as tensors on one device.

    `images`, `top1`, `top5`, `loss` and `nonfinite` are scalars; `targets` and `recalled` count by true class, `chosen`
    by predicted class (K,); `confusion` (K, K) has a row for every true class, and none beyond MAX_CONFUSION classes or
    for sets of labels; `bins` (3, BINS) are images, confidence and hits by confidence.
    """

    images: Tensor
    top1: Tensor
    top5: Tensor
    loss: Tensor
    nonfinite: Tensor
    targets: Tensor
    recalled: Tensor
    chosen: Tensor
    confusion: Tensor
    bins: Tensor

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(*(a + b for a, b in zip(self.tensors(), other.tensors(), strict=True)))

    def tensors(self) -> list[Tensor]:
        """The sums, in the order of the fields."""
        return [getattr(self, item.name) for item in fields(self)]

    def map(self, change: "Callable[[Tensor], Tensor]") -> "Statistics":
        """The same with every tensor changed: `map(Tensor.cpu)`, or a sum over processes."""
        return Statistics(*(change(tensor) for tensor in self.tensors()))


@torch.no_grad()
def statistics(logits: Tensor, labels: Tensor) -> Statistics:
    """The sums of a batch.

    Args:
        logits: (B, K), of any floating-point type.
        labels: (B,) whole numbers, NO_LABEL for images that do not count; or (B, K) booleans, the set of labels that
            are right for every image, where images with an empty set do not count.

    Images with a non-finite output are counted in `nonfinite`, and as wrong.
    """
    classes = logits.shape[1]
    sets = labels if labels.ndim == 2 else None
    counts = labels >= 0 if sets is None else sets.any(1)
    logits, labels = logits[counts].float(), labels[counts]
    finite = logits.isfinite().all(1)
    # (B, k): which of the five likeliest classes are right, the likeliest first
    best = logits.nan_to_num().topk(min(5, classes), 1).indices
    right = best == labels[:, None] if sets is None else labels.gather(1, best)
    hits = right & finite[:, None]
    nothing = logits.new_zeros(0, dtype=torch.long)
    single = nothing if sets is not None else labels
    return Statistics(
        images=counts.sum(),
        top1=hits[:, 0].sum(),
        top5=hits.any(1).sum(),
        loss=_loss(logits, labels)[finite].sum(dtype=torch.float64 if logits.device.type != "mps" else None),
        nonfinite=(~finite).sum(),
        targets=_count(single, classes),
        recalled=_count(single[hits[:, 0]] if sets is None else nothing, classes),
        chosen=_count(best[finite, 0], classes),
        confusion=_confusion(single[finite], best[finite, 0], classes) if sets is None else nothing.view(0, 0),
        bins=_bins(logits[finite].softmax(1).amax(1), hits[finite, 0]),
    )


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) negative logarithm of the probability of the label, or of the whole set of labels."""
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    return logits.logsumexp(1) - logits.masked_fill(~labels, -torch.inf).logsumexp(1)


def _count(values: Tensor, classes: int) -> Tensor:
    return torch.zeros(classes, dtype=torch.long, device=values.device).index_add_(0, values, torch.ones_like(values))


def _confusion(labels: Tensor, chosen: Tensor, classes: int) -> Tensor:
    if classes > MAX_CONFUSION:
        return labels.new_zeros(0, 0)
    return _count(labels * classes + chosen, classes * classes).view(classes, classes)


def _bins(confidence: Tensor, hits: Tensor) -> Tensor:
    """(3, BINS): images, summed confidence and hits; a bin is (lower, upper]."""
    bin = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    rows = torch.stack([torch.ones_like(confidence), confidence, hits.to(confidence)])
    return torch.zeros(3, BINS, dtype=rows.dtype, device=rows.device).index_add_(1, bin, rows)


def scores(total: Statistics) -> dict[str, float]:
    """What is reported of a whole set: `top1`, `top5`, `balanced`, `ece` in percent, and `loss`.

    `balanced` is the mean accuracy of the classes that have images, nan for sets of labels; every value is nan for no
    images at all.
    """
    images = int(total.images)
    share = 100 / images if images else float("nan")
    finite = images - int(total.nonfinite)
    return {
        "top1": float(total.top1) * share,
        "top5": float(total.top5) * share,
        "balanced": float(recall(total).nanmean()),
        "ece": calibration_error(total),
        "loss": float(total.loss) / finite if finite else float("nan"),
    }


def recall(total: Statistics) -> Tensor:
    """(K,) accuracy of every class in percent; nan if it has no images."""
    return 100 * total.recalled.cpu().double() / total.targets.cpu().double()


def precision(total: Statistics) -> Tensor:
    """(K,) share of right ones among the images taken for a class, in percent; nan if none was."""
    return 100 * total.recalled.cpu().double() / total.chosen.cpu().double()


def calibration_error(total: Statistics) -> float:
    """Expected calibration error in percent: the mean gap of confidence and accuracy over BINS bins of confidence."""
    images, confidence, hits = total.bins.cpu().double()
    return float(100 * (confidence - hits).abs().sum() / images.sum())
