"""How far a student is from its teacher: agreement, accuracy where there are labels, and the error of each block."""

from collections.abc import Sequence

import torch
from torch import nn

from sightline.models.attention_error import BLOCK
from sightline.tasks.base import Scores
from sightline.tasks.evaluation import Gather, LabelBatch, LabelScorer, Reduce, Scorer
from sightline.tasks.linearize.distiller import Distiller, divergences
from sightline.tasks.metrics import NO_LABEL


class AgreementScorer(Scorer[LabelBatch, Scores]):
    """Agreement is the share of images with the same likeliest class, in percent.

    Without a classifier it is the mean cosine of the pooled features, in percent. The divergence is that of the classes
    from the teacher's, a mean over images, which tells two students apart that agree with it equally often.

    Args:
        names: of the classes; empty without a classifier.
        labelled: whether labels are those of the images, or only tell images from what fills up a batch.
        blocks: of the model.
    """

    def __init__(self, names: Sequence[str], labelled: bool, blocks: int, device: torch.device) -> None:
        super().__init__(device)
        self.labels = LabelScorer(names, device) if labelled else None
        self.classes = len(names)
        self.totals = torch.zeros(3 + blocks, dtype=torch.float64, device=device)  # images, and sums over them

    def add(self, model: nn.Module, batch: LabelBatch) -> int:
        assert isinstance(model, Distiller)
        images, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        found, wanted, errors = model.compare(images)
        counted = (labels != NO_LABEL).double()
        if self.classes:
            same = (found.argmax(1) == wanted.argmax(1)).double()
            apart = divergences(found, wanted).double()
        else:
            same = torch.cosine_similarity(found, wanted).double()
            apart = torch.zeros_like(same)
        count = counted.sum()
        sums = torch.stack([count, (same * counted).sum(), (apart * counted).sum()])
        self.totals += torch.cat([sums, errors.double() * count])
        if self.labels is not None:
            self.labels.count(found, labels)
        return len(images)

    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> Scores:
        images, same, apart, *errors = reduce(self.totals).tolist()
        values = {"agreement": 100 * same / images}
        if self.classes:
            values["divergence"] = apart / images
        values |= {BLOCK.format(i): error / images for i, error in enumerate(errors)}
        if self.labels is None:
            return Scores(values, images=int(images), seconds=seconds)
        scores = self.labels.result(reduce, gather, seconds)
        return Scores(
            {**values, **scores.values}, scores.per_class, scores.confusion, scores.images, seconds,
            nonfinite=scores.nonfinite,
        )  # fmt: skip
