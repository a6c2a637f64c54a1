"""Attention maps of a few evaluated images with the best weights of a run."""

from functools import partial
from pathlib import Path

from sightline.analysis.capture import attention_blocks
from sightline.analysis.figures import attention_figure, telling_maps
from sightline.engine.report.record import Record
from sightline.engine.settings import TASK, configure
from sightline.hub import load
from sightline.util.files import write_atomic

QUERY = (0.5, 0.5)


def draw_attention(folder: Path, record: Record) -> list[Path]:
    """Write `attention/NN.png` for a few images of different classes; returns their paths.

    Raises:
        ValueError: there are no weights, no images, or the model has no attention to show.
    """
    if not record.spec.pictures:
        return []
    loaded = load(folder)
    section = configure({TASK: record.spec.name, "data": record.config.get("data") or {}}).data
    if not attention_blocks(loaded.model):
        raise ValueError(f"{loaded.card.name} has no attention blocks of sightline")
    paths = []
    for number, example in enumerate(record.spec.examples(loaded, section), 1):
        maps = telling_maps(loaded.model, example.image, QUERY)
        figure = attention_figure([(example.title, example.picture, maps)])
        paths.append(folder / "attention" / f"{number:02d}.png")
        write_atomic(paths[-1], partial(figure.savefig, dpi=110, bbox_inches="tight"))
    return paths
