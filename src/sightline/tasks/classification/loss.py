"""The loss of a batch: labels, smoothed or mixed, and a teacher."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.tasks.classification.config import Distill, Loss


class Criterion:
    """logits (B, K) against (B,) classes or (B, K) probabilities -> the mean over the batch.

    Args:
        loss: form and smoothing.
        distill: share and form of the teacher.
        teacher: gives logits for the same images; None for labels alone.
    """

    def __init__(self, loss: Loss, distill: Distill, teacher: nn.Module | None = None) -> None:
        self.loss = loss
        self.distill = distill
        self.teacher = teacher

    def __call__(self, logits: Tensor, targets: Tensor, images: Tensor) -> Tensor:
        own = self._labels(logits.float(), targets)
        if self.teacher is None:
            return own
        with torch.no_grad():
            teacher_logits = self.teacher(images).float()
        return torch.lerp(own, self._teacher(logits.float(), teacher_logits), self.distill.weight)

    def _labels(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.loss.name == "cross_entropy":
            return F.cross_entropy(logits, targets, label_smoothing=self.loss.smoothing)
        classes = logits.shape[1]
        soft = F.one_hot(targets, classes).float() if targets.ndim == 1 else targets
        smooth = soft * (1 - self.loss.smoothing) + self.loss.smoothing / classes
        return F.binary_cross_entropy_with_logits(logits, smooth)

    def _teacher(self, logits: Tensor, teacher_logits: Tensor) -> Tensor:
        if self.distill.mode == "hard":
            return F.cross_entropy(logits, teacher_logits.argmax(1))
        temperature = self.distill.temperature
        own, wanted = ((values / temperature).log_softmax(1) for values in (logits, teacher_logits))
        gap = F.kl_div(own, wanted, reduction="batchmean", log_target=True)
        return gap * temperature**2
