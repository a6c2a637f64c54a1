"""The heads of Cascade Mask R-CNN, which torchvision does not have: three stages, each on the boxes of the one before.

Cascade R-CNN: Delving into High Quality Object Detection (CVPR 2018; TPAMI 2019 with masks).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import _utils as matching
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops import boxes as box_ops

from sightline.tasks.detection.config import Inference

OVERLAPS = (0.5, 0.6, 0.7)  # from which a box counts as found, by stage
CODES = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
WEIGHTS = (1.0, 0.5, 0.25)  # of the losses
Maps = dict[str, Tensor]
Shape = tuple[int, int]
LEVELS = ["0", "1", "2", "3"]
LEAST = 1e-2  # pixels below which a refined box is dropped


class Stage(nn.Module):
    """One stage: features of boxes -> logits of classes (N, classes) and one correction a box (N, 4); a mask head."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        hidden = 4 * channels
        self.box_head = TwoMLPHead(channels * 7 * 7, hidden)
        self.classify = nn.Linear(hidden, classes)
        self.correct = nn.Linear(hidden, 4)
        self.mask_head = MaskRCNNHeads(channels, (channels,) * 4, 1)
        self.mask_predictor = MaskRCNNPredictor(channels, channels, classes)

    def boxes(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = self.box_head(features)
        return self.classify(x), self.correct(x)

    def masks(self, features: Tensor) -> Tensor:
        return self.mask_predictor(self.mask_head(features))


class CascadeHeads(RoIHeads):
    """Takes the place of `roi_heads` in torchvision's Mask R-CNN.

    Args:
        channels: of the feature pyramid.
        classes: with the background.
        samples: proposals of an image that a stage is trained on.
        test: what counts as a detection.
    """

    def __init__(self, channels: int, classes: int, samples: int, test: Inference) -> None:
        super().__init__(
            MultiScaleRoIAlign(LEVELS, 7, 2), None, None, OVERLAPS[0], OVERLAPS[0], samples, 0.25, CODES[0], test.score,
            test.nms, test.detections, MultiScaleRoIAlign(LEVELS, 14, 2), None, None,
        )  # fmt: skip
        self.classes = classes
        self.box_roi_pool: Any
        self.mask_roi_pool: Any
        self.stages: Any = nn.ModuleList([Stage(channels, classes) for _ in OVERLAPS])

    def has_mask(self) -> bool:
        return True

    def forward(
        self,
        features: Maps,
        proposals: list[Tensor],
        image_shapes: list[Shape],
        targets: Any = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if self.training:
            return [], self._losses(features, proposals, image_shapes, targets)
        return self._detect(features, proposals, image_shapes), {}

    def _aim(self, number: int) -> None:
        """Match and encode as a stage does."""
        overlap = OVERLAPS[number]
        self.proposal_matcher = matching.Matcher(overlap, overlap, allow_low_quality_matches=False)
        self.box_coder = matching.BoxCoder(CODES[number])

    def _losses(self, features: Maps, proposals: list[Tensor], shapes: list[Shape], targets: Any) -> dict[str, Tensor]:
        losses = {}
        for number, (stage, weight) in enumerate(zip(self.stages, WEIGHTS, strict=True)):
            self._aim(number)
            proposals, matched, labels, wanted = self.select_training_samples(proposals, targets)
            logits, corrections = stage.boxes(self.box_roi_pool(features, proposals, shapes))
            for_classes, for_boxes = fastrcnn_loss(logits, self._by_class(corrections), labels, wanted)
            losses[f"loss_classifier_{number}"] = weight * for_classes
            losses[f"loss_box_reg_{number}"] = weight * for_boxes
            losses[f"loss_mask_{number}"] = weight * self._mask_loss(
                stage, features, proposals, shapes, matched, labels, targets
            )
            proposals = self._refined(corrections.detach(), proposals, shapes)
        return losses

    def _mask_loss(
        self, stage: Any, features: Maps, proposals: list[Tensor], shapes: list[Shape],
        matched: list[Tensor], labels: list[Tensor], targets: Any,
    ) -> Tensor:  # fmt: skip
        """Of the proposals that hold an object."""
        held = [torch.where(label > 0)[0] for label in labels]
        boxes = [p[k] for p, k in zip(proposals, held, strict=True)]
        logits = stage.masks(self.mask_roi_pool(features, boxes, shapes))
        masks, classes = ([target[key] for target in targets] for key in ("masks", "labels"))
        return maskrcnn_loss(logits, boxes, masks, classes, [m[k] for m, k in zip(matched, held, strict=True)])

    def _detect(self, features: Maps, proposals: list[Tensor], shapes: list[Shape]) -> list[dict[str, Tensor]]:
        """Boxes of the last stage, with the mean of the probabilities of all."""
        total: Any = 0
        corrections: Any = None
        for number, stage in enumerate(self.stages):
            if number:
                proposals = self._refined(corrections, proposals, shapes, keep_all=True)
            self._aim(number)
            logits, corrections = stage.boxes(self.box_roi_pool(features, proposals, shapes))
            total = total + logits.float().softmax(-1)
        mean = (total / len(self.stages)).clamp(min=1e-12).log()
        boxes, scores, labels = self.postprocess_detections(mean, self._by_class(corrections), proposals, shapes)
        pooled = self.mask_roi_pool(features, boxes, shapes)
        by_stage = [maskrcnn_inference(stage.masks(pooled), labels) for stage in self.stages]
        masks = [torch.stack(found).mean(0) for found in zip(*by_stage, strict=True)]
        columns = zip(boxes, scores, labels, masks, strict=True)
        return [{"boxes": b, "scores": s, "labels": c, "masks": m} for b, s, c, m in columns]

    def _by_class(self, corrections: Tensor) -> Tensor:
        """The one correction of a box (N, 4) as that of every class (N, 4 * classes)."""
        return corrections.repeat(1, self.classes)

    def _refined(
        self,
        corrections: Tensor,
        proposals: Sequence[Tensor],
        shapes: Sequence[Shape],
        keep_all: bool = False,
    ) -> list[Tensor]:
        """Proposals corrected with the code of the stage that corrected them, inside their images."""
        decoded = self.box_coder.decode(corrections.float(), list(proposals)).reshape(-1, 4)
        parts = decoded.split([len(p) for p in proposals])
        boxes = [box_ops.clip_boxes_to_image(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        return boxes if keep_all else [part[box_ops.remove_small_boxes(part, LEAST)] for part in boxes]
