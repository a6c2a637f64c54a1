"""The heads of Cascade Mask R-CNN, which torchvision does not have: three stages, each on the boxes of the one before.

Cascade R-CNN: Delving into High Quality Object Detection (CVPR 2018; TPAMI 2019 with masks).
"""

from typing import cast

import torch
from torch import Tensor, nn
from torchvision.models.detection import _utils as matching
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops import boxes as box_ops

from sightline.tasks.detection.config import Inference
from sightline.tasks.detection.data import Target

OVERLAPS = (0.5, 0.6, 0.7)  # least IoU of a positive, by stage
CODES = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
WEIGHTS = (1.0, 0.5, 0.25)  # of the losses
Maps = dict[str, Tensor]
Shape = tuple[int, int]
LEVELS = ["0", "1", "2", "3"]
LEAST = 1e-2  # pixels below which a refined box is dropped


class Stage(nn.Module):
    """One stage: features of boxes -> class logits (N, classes) and one delta per box (N, 4); and a mask head."""

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
    """Replaces `roi_heads` in torchvision's Mask R-CNN.

    Args:
        channels: of the feature pyramid.
        classes: including the background.
        samples: proposals per image that a stage is trained on.
        test: what counts as a detection.
    """

    def __init__(self, channels: int, classes: int, samples: int, test: Inference) -> None:
        super().__init__(
            MultiScaleRoIAlign(LEVELS, 7, 2), None, None, OVERLAPS[0], OVERLAPS[0], samples, 0.25, CODES[0], test.score,
            test.nms, test.detections, MultiScaleRoIAlign(LEVELS, 14, 2), None, None,
        )  # fmt: skip
        self.classes = classes
        self.stages = cast("list[Stage]", nn.ModuleList([Stage(channels, classes) for _ in OVERLAPS]))

    def has_mask(self) -> bool:
        return True

    def forward(
        self,
        features: Maps,
        proposals: list[Tensor],
        image_shapes: list[Shape],
        targets: list[Target] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if self.training:
            assert targets is not None
            return [], self._losses(features, proposals, image_shapes, targets)
        return self._detect(features, proposals, image_shapes), {}

    def _use_stage(self, number: int) -> None:
        """Use the matcher and box coder of a stage."""
        overlap = OVERLAPS[number]
        self.proposal_matcher = matching.Matcher(overlap, overlap, allow_low_quality_matches=False)
        self.box_coder = matching.BoxCoder(CODES[number])

    def _losses(
        self, features: Maps, proposals: list[Tensor], shapes: list[Shape], targets: list[Target]
    ) -> dict[str, Tensor]:
        losses = {}
        for number, (stage, weight) in enumerate(zip(self.stages, WEIGHTS, strict=True)):
            self._use_stage(number)
            proposals, matched, labels, regression = self.select_training_samples(proposals, targets)
            logits, deltas = stage.boxes(self.box_roi_pool(features, proposals, shapes))
            for_classes, for_boxes = fastrcnn_loss(logits, deltas.repeat(1, self.classes), labels, regression)
            losses[f"loss_classifier_{number}"] = weight * for_classes
            losses[f"loss_box_reg_{number}"] = weight * for_boxes
            losses[f"loss_mask_{number}"] = weight * self._mask_loss(
                stage, features, proposals, shapes, matched, labels, targets
            )
            proposals = self._refined(deltas.detach(), proposals, shapes)
        return losses

    def _mask_loss(
        self, stage: Stage, features: Maps, proposals: list[Tensor], shapes: list[Shape],
        matched: list[Tensor], labels: list[Tensor], targets: list[Target],
    ) -> Tensor:  # fmt: skip
        """Of the positive proposals."""
        positive = [torch.where(label > 0)[0] for label in labels]
        boxes = [p[k] for p, k in zip(proposals, positive, strict=True)]
        logits = stage.masks(self.mask_roi_pool(features, boxes, shapes))
        masks, classes = ([target[key] for target in targets] for key in ("masks", "labels"))
        return maskrcnn_loss(logits, boxes, masks, classes, [m[k] for m, k in zip(matched, positive, strict=True)])

    def _detect(self, features: Maps, proposals: list[Tensor], shapes: list[Shape]) -> list[dict[str, Tensor]]:
        """Boxes of the last stage, with the mean probabilities of all stages."""
        probabilities: list[Tensor] = []
        deltas: Tensor | None = None
        for number, stage in enumerate(self.stages):
            if deltas is not None:
                proposals = self._refined(deltas, proposals, shapes, keep_all=True)
            self._use_stage(number)
            logits, deltas = stage.boxes(self.box_roi_pool(features, proposals, shapes))
            probabilities.append(logits.float().softmax(-1))
        assert deltas is not None
        mean = torch.stack(probabilities).mean(0).clamp(min=1e-12).log()
        boxes, scores, labels = self.postprocess_detections(mean, deltas.repeat(1, self.classes), proposals, shapes)
        pooled = self.mask_roi_pool(features, boxes, shapes)
        by_stage = [maskrcnn_inference(stage.masks(pooled), labels) for stage in self.stages]
        masks = [torch.stack(found).mean(0) for found in zip(*by_stage, strict=True)]
        columns = zip(boxes, scores, labels, masks, strict=True)
        return [{"boxes": b, "scores": s, "labels": c, "masks": m} for b, s, c, m in columns]

    def _refined(
        self, deltas: Tensor, proposals: list[Tensor], shapes: list[Shape], keep_all: bool = False
    ) -> list[Tensor]:
        """Proposals moved by the deltas of the current stage, clipped to their images."""
        decoded = self.box_coder.decode(deltas.float(), proposals).reshape(-1, 4)
        parts = decoded.split([len(p) for p in proposals])
        boxes = [box_ops.clip_boxes_to_image(part, shape) for part, shape in zip(parts, shapes, strict=True)]
        return boxes if keep_all else [part[box_ops.remove_small_boxes(part, LEAST)] for part in boxes]
