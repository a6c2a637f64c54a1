"""`sightline predict` of segmenters and detectors: what was found, in words and in a picture."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.dense import DenseModel, detect, inference_of, load_dense, segment
from sightline.cli.options import UsageError, refuse_given
from sightline.cli.output import write_whole

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from sightline.cli.predict import Options
    from sightline.tasks.dense.card import DenseCard


def refuse_options(options: "Options", card: "DenseCard") -> None:
    """Refuse what is meant for others."""
    what = "a segmenter" if card.task == "segmentation" else "a detector"
    classifiers = {
        "--attention": options.attention, "--query": options.query, "--top": options.top != type(options).top,
        "--img-size": options.img_size, "--model": options.model, "--model-args": options.model_args,
    }  # fmt: skip
    refuse_given(classifiers, f"for classifiers; leave it out for {what}")
    if card.task == "segmentation":
        refuse_given({"--score": options.score != type(options).score}, f"for detection; leave it out for {what}")
    if not 0 <= options.score <= 1:
        raise UsageError(f"--score: {options.score:g} is no score; give 0 to 1")


def predict_dense(options: "Options", path: Path, card: "DenseCard", pictures: dict[Path, Path]) -> None:
    """One image after the other, printing as they come.

    Args:
        pictures: the images, and the file for the picture of each.
    """
    from sightline.data.images import ImageError, load_image
    from sightline.util.device import choose_device

    device = choose_device(options.device, "--device")
    loaded = load_dense(path, card, device)
    facts: list[dict[str, Any]] = []
    for source, target in pictures.items():
        try:
            image = load_image(source)
        except ImageError as error:
            if options.on_error == "stop":
                raise ImageError(f"{error}; repair or remove it, or pass --on-error skip") from error
            facts.append({"file": str(source), "error": str(error)})
        else:
            picture, found = _look(loaded, image, device, options.score)
            write_whole(target, picture.save)
            facts.append({"file": str(source), "found": found, "picture": str(target)})
        if not options.json:
            _print(facts[-1], card.task)
    if options.json:
        print(json.dumps(facts, indent=2))


def _look(
    loaded: DenseModel, image: "Image.Image", device: "torch.device", least: float
) -> "tuple[Image.Image, list[dict[str, Any]]]":
    """A picture, and what it shows, the largest or surest first."""
    import numpy as np

    from sightline.tasks.dense.draw import objects, overlay

    names = loaded.card.classes
    if loaded.card.task == "segmentation":
        classes = segment(loaded, image, device, inference_of(loaded.card))
        shares = np.bincount(classes.reshape(-1), minlength=len(names)) / classes.size
        rows = [{"class": names[i], "share": round(float(shares[i]), 6)} for i in np.argsort(-shares) if shares[i]]
        return overlay(image, classes, names), rows
    found = detect(loaded, image, device, least)
    columns = zip(found["labels"].tolist(), found["scores"].tolist(), found["boxes"].tolist(), strict=True)
    rows = [{"class": names[c - 1], "score": round(s, 4), "box": [round(v, 1) for v in b]} for c, s, b in columns]
    return objects(image, found, names), sorted(rows, key=lambda row: -row["score"])


def _print(fact: dict[str, Any], task: str) -> None:
    print(fact["file"])
    if "error" in fact:
        print(f"  {fact['error']}")
        return
    for row in fact["found"]:
        if task == "segmentation":
            print(f"  {100 * row['share']:5.1f} %  {row['class']}")
        else:
            print(f"  {row['score']:.2f}  {row['class']}  {', '.join(f'{v:.0f}' for v in row['box'])}")
    print(f"  wrote {fact['picture']}")
