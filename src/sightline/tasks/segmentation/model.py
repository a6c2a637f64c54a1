"""A backbone with a decoder of segmentation_models_pytorch: UPerNet or Semantic FPN."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from sightline.ops.checks import padding
from sightline.tasks.dense.backbone import Backbone, WithBackbone
from sightline.tasks.dense.card import DenseCard, DenseHead
from sightline.tasks.segmentation.config import Inference, Model
from sightline.util.errors import InputError
from sightline.util.schema import Share

DIVISOR = 32  # inside, images are padded to a multiple of it


@dataclass(frozen=True, kw_only=True)
class Head(DenseHead):
    """The decoder, and how images are evaluated."""

    name: Literal["upernet", "semantic_fpn"]
    drop: Share
    auxiliary: bool
    test: Inference


Card = DenseCard[Head]


class Segmenter(WithBackbone):
    """Normalized images (B, 3, H, W) of any size -> logits (B, classes, H, W); in training, a pair with the logits of
    the auxiliary head or None.

    Args:
        config: backbone and decoder.
        classes: outputs per pixel.
        auxiliary: add a small head on the third map, used in training only.

    UPerNet: Unified Perceptual Parsing for Scene Understanding (ECCV 2018). Semantic FPN: Panoptic Feature Pyramid
    Networks (CVPR 2019).
    """

    def __init__(self, config: Model, classes: int, auxiliary: bool = False) -> None:
        super().__init__()
        upernet = config.head == "upernet"
        self.backbone = Backbone(config, norm=not upernet)  # UPerNet's decoder normalizes the maps itself
        channels = self.backbone.channels
        self.decoder, width = _decoder(config, channels)
        self.drop = nn.Dropout2d(config.drop)
        self.classify = nn.Conv2d(width, classes, 1)
        self.auxiliary = _auxiliary(channels[2], classes, config.drop) if auxiliary else None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor | None]:
        height, width = x.shape[-2:]
        padded = F.pad(x, (0, padding(width, DIVISOR), 0, padding(height, DIVISOR)))
        maps = self.backbone(padded)
        # Decoders of smp also take maps at strides 1 and 2, which they ignore.
        logits = self.classify(self.drop(self.decoder([padded, padded, *maps])))
        logits = _upsample(logits, padded)[..., :height, :width]
        if not self.training:
            return logits
        if self.auxiliary is None:
            return logits, None
        return logits, _upsample(self.auxiliary(maps[2]), padded)[..., :height, :width]


def _upsample(logits: Tensor, image: Tensor) -> Tensor:
    return F.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=False)


def _decoder(config: Model, channels: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The decoder and its output channels, at a quarter of the size."""
    try:
        from segmentation_models_pytorch.decoders.fpn.decoder import FPNDecoder
        from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
    except ImportError as error:
        raise InputError(
            "segmentation needs segmentation_models_pytorch: pip install segmentation_models_pytorch"
        ) from error
    every = [3, 3, *channels]
    if config.head == "upernet":
        return UPerNetDecoder(every, 5, config.channels), config.channels
    width = max(config.channels // 2, 32)  # half of the pyramid's, in groups of 32
    return FPNDecoder(every, 5, config.channels, width, dropout=0.0), width


def _auxiliary(channels: int, classes: int, drop: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU(inplace=True),
        nn.Dropout2d(drop), nn.Conv2d(256, classes, 1),
    )  # fmt: skip


def from_card(card: Card) -> Segmenter:
    """The model that a card describes, with new weights."""
    head = card.head
    config = Model(name=card.name, args=card.arguments, head=head.name, channels=head.channels, drop=head.drop)
    return Segmenter(config, len(card.classes), head.auxiliary)
