"""Attention maps of a few test images with the best weights of a run."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from sightline.analysis.figures import attention_figure, telling_maps
from sightline.analysis.maps import attention_blocks
from sightline.data.splits import Split
from sightline.engine.report.record import Record
from sightline.engine.settings import resolve
from sightline.models.weights.reader import find_weights, read_metadata
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.data import open_split
from sightline.tasks.classification.model import load_weights
from sightline.tasks.classification.preprocess import make_transform
from sightline.tasks.create import create

IMAGES = 4
QUERY = (0.5, 0.5)


def draw_attention(folder: Path, record: Record) -> list[Path]:
    """Write `attention/NN.png` for a few test images of different classes, and give their paths.

    Raises:
        ValueError: there are no weights, no test images, or the model has no attention that could be shown.
    """
    weights = find_weights(folder)
    card = ModelCard.from_metadata(read_metadata(weights))
    if card is None:
        raise ValueError(f"{weights}: the file does not say which model it is")
    data = resolve({"data": record.config.get("data") or {}}).data
    if data.source == "synthetic":
        raise ValueError("synthetic data have no test images")
    split = open_split(data, "val", card.classes)
    model = create(card.name, card.arguments)
    if not attention_blocks(model):
        raise ValueError(f"{card.name} has no attention blocks of sightline")
    load_weights(model, str(weights))
    target = folder / "attention"
    target.mkdir(exist_ok=True)
    paths = []
    for number, index in enumerate(_choose(split), 1):
        paths.append(target / f"{number:02d}.png")
        _draw(model.eval(), card, split, index, paths[-1])
    return paths


def _choose(split: Split) -> list[int]:
    """The first images of classes that lie far apart."""
    first: dict[int, int] = {}
    for index, label in enumerate(split.targets):
        first.setdefault(label, index)
    places = list(first.values())
    step = max(1, len(places) // IMAGES)
    return places[::step][:IMAGES]


@torch.no_grad()
def _draw(model: nn.Module, card: ModelCard, split: Split, index: int, path: Path) -> None:
    image: Any = make_transform(card)(split.image(index, card.input_size[0]))
    chosen = int(model(image.unsqueeze(0)).argmax())
    maps = telling_maps(model, image, QUERY)
    title = f"{card.classes[split.targets[index]]}, taken for {card.classes[chosen]}"
    attention_figure([(title, shown(image, card), maps)]).savefig(path, dpi=110, bbox_inches="tight")


def shown(image: Tensor, card: ModelCard) -> Image.Image:
    """A normalised image (channels, height, width) as a picture again."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (card.mean, card.std))
    pixels = ((image.cpu() * std + mean).clamp(0, 1) * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).squeeze(-1).numpy())
