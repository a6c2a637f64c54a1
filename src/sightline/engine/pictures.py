"""The pictures of predictions: their files, and attention maps."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from sightline.analysis.capture import attention_blocks
from sightline.analysis.figures import attention_figure, new_figure, telling_maps
from sightline.analysis.maps import Patch, Query, in_shares
from sightline.data.images import EXTENSIONS
from sightline.engine.report.figures import write_figure
from sightline.layers.core import Core
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import shown
from sightline.util.errors import InputError
from sightline.util.files import check_writable


def picture_files(target: str | None, images: Sequence[Path], option: str) -> dict[Path, Path]:
    """Choose a PNG file for the picture of every image.

    Args:
        target: a PNG file for one image, or a folder, which is created if missing; None for no pictures.
        images: files. The pictures have their names, with numbers in front if two are the same.
        option: gives `target`, for messages.

    Raises:
        InputError: `target` cannot be written, or a picture would replace an image.
    """
    if target is None:
        return {}
    path = Path(target)
    if path.suffix.lower() == ".png":
        if len(images) > 1:
            raise InputError(f"{option}: {target} is one file for {len(images)} images; give a folder")
        if not path.parent.is_dir() or path.is_dir():
            raise InputError(f"{option}: {target} cannot be written; is there a folder {path.parent}?")
        check_writable(path.parent, option)
        pictures = {images[0]: path}
    else:
        if not path.is_dir() and (path.exists() or path.suffix.lower() in (*EXTENSIONS, ".pdf", ".svg")):
            raise InputError(f"{option}: {target} is not a folder; give a folder, or a file that ends in .png")
        check_writable(target, option)
        width, unique = len(str(len(images))), len({image.stem for image in images}) == len(images)
        pictures = {
            image: path / (f"{image.stem}.png" if unique else f"{i:0{width}d}-{image.stem}.png")
            for i, image in enumerate(images, 1)
        }
    originals = {os.path.realpath(image) for image in images}  # unlike Path's, it takes links to themselves
    for picture in pictures.values():
        if os.path.realpath(picture) in originals:
            raise InputError(f"{option}: {picture} is one of the images and would be lost; give another path")
    return pictures


def check_attention(loaded: Loaded, query: Query | Patch) -> None:
    """Reject a model or query without attention maps, before any image is read.

    Raises:
        InputError: no attention blocks of sightline, none with a matrix of weights, or no class token.
    """
    new_figure(1, 1)  # raises if matplotlib is missing
    if not attention_blocks(loaded.model):
        raise InputError(f"attention: {loaded.card.title} has no attention blocks of sightline")
    cores = [module for module in loaded.model.modules() if isinstance(module, Core)]
    if not any(core.has_rows for core in cores):
        raise InputError(f"attention: the mechanism of {loaded.card.title} has no attention matrix to draw")
    if query is None and not getattr(loaded.model, "num_prefix_tokens", 0):
        raise InputError(f"query: {loaded.card.title} has no class token; give a point such as 0.5,0.5")


def draw_attention(loaded: Loaded, pixels: Tensor, query: Query | Patch, title: str, target: Path) -> None:
    """Write the attention maps of an image as a PNG file.

    Args:
        loaded: a classifier.
        pixels: (channels, height, width), as the model takes them.
        query: whose attention to draw; None is the class token.
        title: of the figure.
        target: the file.
    """
    assert isinstance(loaded.card, ModelCard)
    point = in_shares(query, loaded.model, pixels)
    title += " (class token)" if point is None else ""
    figure = attention_figure([(title, shown(pixels, loaded.card), telling_maps(loaded.model, pixels, point))])
    write_figure(target, figure, "--attention")
