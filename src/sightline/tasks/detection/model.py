"""Detectors of torchvision on our backbones, with a feature pyramid: RetinaNet, Faster, Mask and Cascade Mask R-CNN."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes
from torchvision.ops import FeaturePyramidNetwork, clip_boxes_to_image
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from sightline.tasks.card import Side
from sightline.tasks.dense.backbone import STRIDES, Backbone, WithBackbone
from sightline.tasks.dense.card import DenseCard, DenseHead
from sightline.tasks.detection.cascade import CascadeHeads
from sightline.tasks.detection.config import Inference, Model
from sightline.tasks.detection.data import Target
from sightline.util.names import MAX_SIDE
from sightline.util.schema import Several

Objects = dict[str, Tensor]  # boxes (N, 4) left, top, right, bottom; labels (N,) from 1 on; scores (N,); perhaps masks
RATIOS = (0.5, 1.0, 2.0)
LEVELS = 5


@dataclass(frozen=True, kw_only=True)
class Head(DenseHead, Inference):
    """The detector, and how images are evaluated."""

    name: Literal["mask_rcnn", "retinanet", "cascade_mask_rcnn", "faster_rcnn"]
    short: Side
    anchor: Annotated[float, Field(ge=0.01, le=MAX_SIDE)] | None
    categories: Several[int]  # ids of the classes in the training data


Card = DenseCard[Head]


def has_masks(head: str) -> bool:
    """Whether a detector finds masks as well as boxes."""
    return head in ("mask_rcnn", "cascade_mask_rcnn")


class PyramidBackbone(nn.Module):
    """A backbone with a feature pyramid, five levels of `out_channels`: strides 4 to 64, or 8 to 128."""

    def __init__(self, config: Model, high: bool) -> None:
        super().__init__()
        self.backbone = Backbone(config)
        self.first = 1 if high else 0
        width = config.channels
        extra = LastLevelP6P7(width, width) if high else LastLevelMaxPool()
        self.pyramid = FeaturePyramidNetwork(list(self.backbone.channels[self.first :]), width, extra)
        self.out_channels = width
        self.strides = tuple(STRIDES[self.first] * 2**i for i in range(LEVELS))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.backbone(x)[self.first :]
        return self.pyramid(OrderedDict((str(i), x) for i, x in enumerate(maps)))


class BatchImages(GeneralizedRCNNTransform):
    """Only pads images into one batch: our transforms resize and normalize them, and boxes are scaled back when the
    size of the original is known."""

    def __init__(self) -> None:
        super().__init__(1, 1, [0.0], [1.0])

    def forward(
        self, images: list[Tensor], targets: list[Target] | None = None
    ) -> tuple[ImageList, list[Target] | None]:
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        return ImageList(self.batch_images(images, self.size_divisible), sizes), targets

    def postprocess(self, result: list[Target], image_shapes: object, original_image_sizes: object) -> list[Target]:
        return result


class Detector(WithBackbone):
    """A list of normalized images (3, h, w) of any sizes -> in training the losses by name, else one dictionary per
    image: `boxes` (N, 4), `scores`, `labels` from 1 on, and `masks` (N, 1, 28, 28) inside the boxes.

    Args:
        config: backbone and detector.
        classes: without the background.
        test: what counts as a detection.
    """

    def __init__(self, config: Model, classes: int, test: Inference) -> None:
        super().__init__()
        self.retina = config.head == "retinanet"
        pyramid = PyramidBackbone(config, high=self.retina)
        make = _retinanet if self.retina else _rcnn
        self.detector = make(pyramid, config, classes, test)
        self.detector.transform = BatchImages()

    def forward(self, images: list[Tensor], targets: list[Target] | None = None) -> dict[str, Tensor] | list[Objects]:
        if self.retina and targets is not None:  # it has no background class
            targets = [{**target, "labels": target["labels"] - 1} for target in targets]
        found = self.detector(images, targets)
        if self.retina and not self.training:
            found = [{**item, "labels": item["labels"] + 1} for item in found]
        return found


def in_original(found: Objects, given: Sequence[int], size: tuple[int, int]) -> Objects:
    """Outputs for an image of size `given` in the pixels of the original, which is (height, width) `size`, on the CPU.

    Masks become booleans (N, height, width).
    """
    boxes = clip_boxes_to_image(resize_boxes(found["boxes"].float(), list(given), list(size)), size)
    objects = {"boxes": boxes, "labels": found["labels"], "scores": found["scores"].float()}
    if "masks" in found:
        objects["masks"] = paste_masks_in_image(found["masks"].float(), boxes, size)[:, 0] > 0.5
    return {key: value.cpu() for key, value in objects.items()}


def _retinanet(pyramid: PyramidBackbone, config: Model, classes: int, test: Inference) -> RetinaNet:
    side = config.anchor or 4.0
    sizes = tuple(tuple(side * stride * 2 ** (i / 3) for i in range(3)) for stride in pyramid.strides)
    return RetinaNet(
        pyramid, classes, anchor_generator=AnchorGenerator(sizes, (RATIOS,) * LEVELS), score_thresh=test.score,
        nms_thresh=test.nms, detections_per_img=test.detections,
    )  # fmt: skip


def _rcnn(pyramid: PyramidBackbone, config: Model, classes: int, test: Inference) -> FasterRCNN:
    """The widths of the heads follow that of the pyramid: 256 gives the published ones."""
    side, width = config.anchor or 8.0, config.channels
    options: dict[str, Any] = {
        "rpn_anchor_generator": AnchorGenerator(
            tuple((side * stride,) for stride in pyramid.strides), (RATIOS,) * LEVELS
        ),
        "box_head": TwoMLPHead(width * 7 * 7, 4 * width),
        "box_predictor": FastRCNNPredictor(4 * width, classes + 1),
        "box_batch_size_per_image": config.samples,
        "box_score_thresh": test.score,
        "box_nms_thresh": test.nms,
        "box_detections_per_img": test.detections,
    }
    if config.head == "faster_rcnn":
        return FasterRCNN(pyramid, **options)
    options["mask_head"] = MaskRCNNHeads(width, (width,) * 4, 1)
    options["mask_predictor"] = MaskRCNNPredictor(width, width, classes + 1)
    detector = MaskRCNN(pyramid, **options)
    if config.head == "cascade_mask_rcnn":
        detector.roi_heads = CascadeHeads(width, classes + 1, config.samples, test)
    return detector


def from_card(card: Card) -> Detector:
    """The model that a card describes, with new weights."""
    head = card.head
    config = Model(name=card.name, args=card.arguments, head=head.name, channels=head.channels, anchor=head.anchor)
    return Detector(config, len(card.classes), head)
