"""A backbone with a decoder of segmentation_models_pytorch: UPerNet or Semantic FPN."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sightline.tasks.dense.backbone import Backbone, WithBackbone
from sightline.tasks.dense.card import DenseCard, plain
from sightline.tasks.segmentation.config import Data, Model
from sightline.tasks.segmentation.transforms import pair

DIVISOR = 32  # sides of an image must be multiples of it inside; it is padded and cut again


class Segmenter(WithBackbone):
    """Images (B, 3, H, W) of any size, normalised -> logits (B, classes, H, W); in training a pair with those of the
    auxiliary head, or None.

    Args:
        config: backbone and decoder.
        classes: outputs a pixel.
        auxiliary: whether a small head on the third map helps in training.

    UPerNet: Unified Perceptual Parsing for Scene Understanding (ECCV 2018). Semantic FPN: Panoptic Feature Pyramid
    Networks (CVPR 2019).
    """

    def __init__(self, config: Model, classes: int, auxiliary: bool = False) -> None:
        super().__init__()
        upernet = config.head == "upernet"
        self.backbone = Backbone(config, norm=not upernet)  # UPerNet's decoder norms the maps itself
        channels = self.backbone.channels
        self.decoder, width = _decoder(config, channels)
        self.drop = nn.Dropout2d(config.drop)
        self.classify = nn.Conv2d(width, classes, 1)
        self.auxiliary = _auxiliary(channels[2], classes, config.drop) if auxiliary else None

    def forward(self, x: Tensor) -> Any:
        height, width = x.shape[-2:]
        padded = F.pad(x, (0, -width % DIVISOR, 0, -height % DIVISOR))
        maps = self.backbone(padded)
        # Decoders of smp count maps at strides 1 and 2 as well, and leave them alone.
        logits = self.classify(self.drop(self.decoder([padded, padded, *maps])))
        logits = _enlarge(logits, padded)[..., :height, :width]
        if not self.training:
            return logits
        if self.auxiliary is None:
            return logits, None
        return logits, _enlarge(self.auxiliary(maps[2]), padded)[..., :height, :width]


def _enlarge(logits: Tensor, image: Tensor) -> Tensor:
    return F.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=False)


def _decoder(config: Model, channels: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The decoder and the channels that it gives, at a quarter of the size."""
    try:
        from segmentation_models_pytorch.decoders.fpn.decoder import FPNDecoder
        from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
    except ImportError as error:
        raise ValueError(
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


def build(
    config: Model, data: Data, test: Mapping[str, Any], classes: tuple[str, ...], auxiliary: bool
) -> tuple[Segmenter, DenseCard]:
    """The model with its starting weights, and the card that says how to use it."""
    model = Segmenter(config, len(classes), auxiliary)
    height, width = pair(data.size)
    head = {
        "name": config.head, "channels": config.channels, "drop": config.drop, "auxiliary": auxiliary,
        "short": data.short, "long": data.long, "test": dict(test),
    }  # fmt: skip
    card = DenseCard(
        config.name, plain(config.args), classes, (3, height, width), tuple(data.mean), tuple(data.std), "bilinear",
        1.0, "segmentation", head,
    )  # fmt: skip
    return model, card


def from_card(card: DenseCard) -> Segmenter:
    """The model that a card describes, with new weights.

    Raises:
        ValueError: there is no such backbone.
    """
    head = card.head
    config = Model(
        name=card.name, args=card.arguments, head=head["name"], channels=head["channels"], drop=float(head["drop"])
    )
    return Segmenter(config, len(card.classes), head["auxiliary"])
