"""`sightline predict`: the likeliest classes of images, and what the model looked at."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.cli.classifier import Classifier, load_classifier
from sightline.cli.dense import find_dense
from sightline.cli.dense_predict import predict_dense, refuse_options
from sightline.cli.models import parse_model_args
from sightline.cli.options import Command, UsageError, option, positional, refuse_given
from sightline.cli.output import Column, check_writable, show, write_whole
from sightline.util.names import parse_sizes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sightline.analysis.maps import Patch, Query
    from sightline.tasks.card import ModelCard

COLUMNS = (Column("rank", right=True), Column("index", right=True), Column("probability", right=True), Column("class"))


@dataclass(frozen=True)
class Options:
    """Classify images and print the likeliest classes of each; with weights of a segmenter or detector, say what was
    found and draw it over the images.

    An image may be a file, a folder (with the folders in it) or a pattern in quotes, such as 'photos/*.jpg'. Images
    are turned upright, and of any colour space, depth and size.
    """

    image: tuple[str, ...] = positional("images, folders or patterns")
    checkpoint: str | None = option("run folder, or file of weights, public ones as published", metavar="PATH")
    top: int = option("classes to print; by default 5", default=5, metavar="K")
    attention: str | None = option(
        "draw attention maps: a PNG file, or a folder for several images; needs matplotlib", metavar="PATH"
    )
    query: str | None = option(
        "whose attention to draw: a patch as row,column, a place as shares of the image (0.3,0.6), or class; "
        "by default the middle",
        metavar="PLACE",
    )
    img_size: str | None = option("pixels, 224 or 384x640 (height x width); by default as trained", metavar="SIZE")
    model: str | None = option("the model, where the weights do not show it", metavar="NAME")
    model_args: tuple[str, ...] = option(
        "arguments of the model, as key=value or a JSON object; may be repeated", default=(), metavar="ARGS"
    )
    device: str = option("cpu, cuda, mps; by default what there is", default="auto", metavar="NAME")
    on_error: Literal["stop", "skip"] = option(
        "on an unreadable image: stop (default) or skip it", default="stop", metavar="WHAT"
    )
    out: str = option(
        "segmentation and detection: a PNG file, or a folder, for the pictures; by default predictions",
        default="predictions", metavar="PATH",
    )  # fmt: skip
    score: float = option("detection: least score that is drawn; by default 0.5", default=0.5, metavar="SCORE")
    json: bool = option("print JSON", default=False)


def run(options: Options) -> None:
    """Classify one image after the other, printing as they come."""
    from sightline.analysis.studies.query import find_query, parse_query
    from sightline.data.labels import in_words
    from sightline.tasks.classification.preprocess import at_size

    if options.checkpoint is None:
        raise UsageError("--checkpoint: say which weights: a run folder, or a file")
    if options.top < 1:
        raise UsageError(f"--top: {options.top} is not a number of classes; give at least 1")
    paths = find_images(options.image)
    if (dense := find_dense(options.checkpoint)) is not None:
        refuse_options(options, dense[1])  # before a folder is made
        return predict_dense(options, *dense, _pictures(options.out, paths, "--out"))
    refuse_given(
        {"--out": options.out != Options.out, "--score": options.score != Options.score},
        "for segmentation and detection; leave it out for a classifier",
    )
    query = parse_query(options.query)
    pictures = _pictures(options.attention, paths)
    from sightline.util.device import choose_device

    device = choose_device(options.device, "--device")
    classifier = load_classifier(options.checkpoint, options.model, parse_model_args(options.model_args))
    if options.attention is not None:
        check_attention(classifier, query)
    card = classifier.card
    if options.img_size is not None:
        card = at_size(card, parse_sizes((options.img_size,))[0])
    classifier.model.to(device)
    names = in_words(card.classes) if classifier.named else None
    facts = []
    for path, image, error in _read(paths, card, options.on_error):
        if image is None:
            facts.append({"file": str(path), "error": error})
            if not options.json:
                print(f"{error}\n")
            continue
        probabilities, indices = classify(classifier, image.to(device), options.top)
        found = [_fact(p, i, names) for p, i in zip(probabilities, indices, strict=True)]
        fact: dict[str, Any] = {"file": str(path), "predictions": found}
        if path in pictures:
            place = find_query(query, classifier.model, image.to(device))
            draw(classifier, card, image.to(device), place, f"{path.name}: {found[0]['class']}", pictures[path])
            fact["attention"] = str(pictures[path])
        facts.append(fact)
        if not options.json:
            _print(fact)
    if options.json:
        print(json.dumps(facts, indent=2))
    elif options.attention is not None and pictures:
        print(f"wrote {options.attention}")


def find_images(given: tuple[str, ...]) -> list[Path]:
    """The files that are meant, each once: folders with what is in them, patterns with what they match."""
    from sightline.data.images import EXTENSIONS

    paths: dict[Path, None] = {}
    for text in given:
        path = Path(text)
        if not text.strip():
            raise UsageError("an image with an empty name; give files, folders or patterns in quotes")
        if path.is_dir():
            inside = sorted(item for item in path.rglob("*") if item.suffix.lower() in EXTENSIONS and item.is_file())
            if not inside:
                raise UsageError(f"{text}: no images in this folder ({', '.join(EXTENSIONS)})")
        elif has_magic(text) and not path.exists():
            inside = sorted(Path(item) for item in glob(text, recursive=True) if Path(item).is_file())
            if not inside:
                raise UsageError(f"{text}: no file matches this pattern")
        elif not path.exists():
            raise UsageError(f"{text}: there is no such file; give images, folders, or patterns in quotes")
        else:
            inside = [path]
        paths.update(dict.fromkeys(inside))
    return list(paths)


def _pictures(target: str | None, paths: list[Path], name: str = "--attention") -> dict[Path, Path]:
    """The file for the picture of every image."""
    if target is None:
        return {}
    path = Path(target)
    if path.suffix.lower() == ".png":
        if len(paths) > 1:
            raise UsageError(f"{name}: {target} is one file for {len(paths)} images; give a folder")
        if not path.parent.is_dir() or path.is_dir():
            raise UsageError(f"{name}: {target} cannot be written; is there a folder {path.parent}?")
        check_writable(path.parent, name)
        return _beside({paths[0]: path}, name)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{name}: {target} is not a folder; give a folder, or a file that ends in .png")
    check_writable(target, name)
    stems = [image.stem for image in paths]
    width = len(str(len(paths)))
    unique = len(set(stems)) == len(stems)
    pictures = {
        image: path / (f"{image.stem}.png" if unique else f"{i:0{width}d}-{image.stem}.png")
        for i, image in enumerate(paths, 1)
    }
    return _beside(pictures, name)


def _beside(pictures: dict[Path, Path], name: str) -> dict[Path, Path]:
    """The same pictures, refused where one would take the place of an image that is looked at."""
    images = {image.resolve() for image in pictures}
    for target in pictures.values():
        if target.resolve() in images:
            raise UsageError(f"{name}: {target} is one of the images and would be lost; give another place")
    return pictures


def check_attention(classifier: Classifier, query: "Query | Patch") -> None:
    """Refuse what cannot be drawn before any image is read."""
    from sightline.analysis.figures import new_figure
    from sightline.analysis.maps import attention_blocks

    new_figure(1, 1)
    if not attention_blocks(classifier.model):
        raise UsageError(f"--attention: {classifier.title} has no attention blocks of sightline")
    if query is None and not getattr(classifier.model, "num_prefix_tokens", 0):
        raise UsageError(f"--query: {classifier.title} has no class token; give a place such as 0.5,0.5")


def _read(paths: list[Path], card: "ModelCard", on_error: str) -> "Iterator[tuple[Path, Tensor | None, str]]":
    from sightline.data.images import ImageError, load_image
    from sightline.tasks.classification.preprocess import make_transform

    transform = make_transform(card)
    for path in paths:
        try:
            yield path, transform(load_image(path, channels=card.input_size[0])), ""
        except ImageError as error:
            if on_error == "stop":
                raise ImageError(f"{error}; repair or remove it, or pass --on-error skip") from error
            yield path, None, str(error)


def classify(classifier: Classifier, image: "Tensor", top: int) -> tuple[list[float], list[int]]:
    """Probabilities and outputs of the likeliest classes of an image (channels, height, width)."""
    import torch

    with torch.inference_mode():
        try:
            logits: torch.Tensor = classifier.model(image.unsqueeze(0))[0].float()
        except (RuntimeError, AssertionError) as error:
            size, reason = "x".join(map(str, image.shape[1:])), str(error).partition("\n")[0]
            raise UsageError(f"{classifier.title} failed on an image of {size}: {reason}") from error
    probabilities, indices = logits.softmax(0).topk(min(top, len(logits)))
    return probabilities.tolist(), indices.tolist()


def draw(
    classifier: Classifier, card: "ModelCard", image: "torch.Tensor", query: "Query", title: str, path: Path
) -> None:
    """Write the attention maps of an image as a PNG file."""
    from sightline.analysis.figures import attention_figure, telling_maps
    from sightline.engine.report.attention import shown

    title = title if query is not None else f"{title} (class token)"
    maps = telling_maps(classifier.model, image, query)
    figure = attention_figure([(title, shown(image, card), maps)])
    write_whole(path, lambda target: figure.savefig(target, dpi=110, bbox_inches="tight"), "--attention")


def _fact(probability: float, index: int, names: list[str] | None) -> dict[str, Any]:
    return {"index": index, "class": names[index] if names else str(index), "probability": round(probability, 6)}


def _print(fact: dict[str, Any]) -> None:
    print(fact["file"])
    rows = [
        [str(rank), str(found["index"]), f"{found['probability']:.4f}", found["class"]]
        for rank, found in enumerate(fact["predictions"], 1)
    ]
    show(COLUMNS, rows)
    print()


COMMAND = Command(
    Options,
    run,
    help="what is in images, and what the model looked at",
    examples=(
        "  sightline predict photo.jpg --checkpoint runs/quick\n"
        "  sightline predict 'photos/*.jpg' --checkpoint public.pth --top 3 --json\n"
        "  sightline predict photos --checkpoint public.pth --attention maps --query 0.3,0.6"
    ),
)
