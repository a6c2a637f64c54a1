"""Match the class names of the data with those of a model; the other label sets of ImageNet.

ImageNet's classes are known by their WordNet numbers (n01440764), which the folders of the training set carry, by their
index in the sorted list of those, which the folders of ImageNet-V2 carry, and by name (tench).
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from sightline.util.documents import read_text
from sightline.util.errors import FileError

WORDNET = re.compile(r"n\d{8}")
VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})")
WAYS = ("names", "order", "v2")
Labels = list[Annotated[int, Field(strict=True, ge=0, lt=1000)]]
LABEL_SETS: TypeAdapter[list[Labels] | dict[str, Labels]] = TypeAdapter(list[Labels] | dict[str, Labels])


@cache
def imagenet_classes() -> tuple[str, ...]:
    """The WordNet numbers of ImageNet-1K, in the order of every public model's outputs."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo().label_names())


def in_words(names: Sequence[str]) -> list[str]:
    """Readable names: WordNet IDs become class names, others are unchanged."""
    if not any(WORDNET.fullmatch(name) for name in names):
        return list(names)
    from timm.data import ImageNetInfo

    info, known = ImageNetInfo(), set(imagenet_classes())
    return [info.label_name_to_description(name) if name in known else name for name in names]


def match(found: Sequence[str], known: Sequence[str], way: str = "names") -> list[int]:
    """The output of the model for every class of the data.

    Args:
        found: classes of the data.
        known: classes of the model, in the order of its outputs.
        way: "names" goes by name or WordNet ID; "order" takes the classes as they come; "v2" reads the names
            as indices of outputs, as ImageNet-V2 has them.

    Raises:
        FileError: a class of the data has no output.
    """
    if way == "v2":
        return [_index(name, len(known)) for name in found]
    if way == "order":
        if len(found) > len(known):
            raise FileError(
                f"labels: the data has {len(found)} classes and the model {len(known)}; match them by names"
            )
        return list(range(len(found)))
    outputs = {name: i for i, name in reversed(list(enumerate(known)))}
    if tuple(known) == imagenet_classes() and not set(found) & set(known) and all(n.isdecimal() for n in found):
        return match(found, known, "v2")
    words = _words(known)
    return [outputs[name] if name in outputs else _by_words(name, words, known) for name in found]


def _index(name: str, count: int) -> int:
    if not name.isdecimal() or int(name) >= count:
        raise FileError(
            f"labels: class {name!r} is not the index of an output, 0 to {count - 1}; match classes by names"
        )
    return int(name)


def _words(known: Sequence[str]) -> dict[str, list[int]]:
    """Outputs by lowercase name: the whole name, and each synonym in WordNet's names."""
    words: dict[str, list[int]] = {}
    for i, (name, text) in enumerate(zip(known, in_words(known), strict=True)):
        for word in dict.fromkeys([text, *(text.split(",") if text != name else ())]):
            words.setdefault(_plain(word), []).append(i)
    return words


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", " ")


def _by_words(name: str, words: dict[str, list[int]], known: Sequence[str]) -> int:
    indices = words.get(_plain(name), [])
    if len(indices) == 1:
        return indices[0]
    if indices:  # ImageNet has two kinds of crane
        both = " or ".join(known[i] for i in indices)
        raise FileError(f"labels: class {name!r} could be {both}; use one of these names")
    close = get_close_matches(_plain(name), list(words), 1, cutoff=0.6)
    more = " and others" if len(known) > 3 else ""
    nearest = f"the nearest is {known[words[close[0]][0]]!r}" if close else f"it has {', '.join(known[:3])}{more}"
    raise FileError(
        f"labels: the model has no class {name!r}; {nearest}; rename the class, or evaluate with labels=order"
    )


def real_labels(names: Sequence[str], classes: Sequence[str], path: str | Path | None = None) -> Tensor:
    """ImageNet-ReaL: for every image the set of outputs that are right, (images, outputs) booleans.

    Args:
        names: of the image files; ILSVRC2012_val_00000293.JPEG is the 293rd.
        classes: of the model; they must be ImageNet's.
        path: a JSON file of the sets, a list in the order of the validation images, or an object by file name; by
            default the published one, which timm carries.

    Raises:
        FileError: the file is missing, an image is not in it, or the model is not for ImageNet.
    """
    outputs = {name: i for i, name in enumerate(classes)}
    if not set(imagenet_classes()) <= outputs.keys():
        raise FileError(
            "labels: the ReaL labels are those of ImageNet-1K's 1000 classes; this model has others; leave labels out"
        )
    order = [outputs[name] for name in imagenet_classes()]
    sets = _read_sets(path)
    table = torch.zeros(len(names), len(classes), dtype=torch.bool)
    for row, name in zip(table, names, strict=True):
        numbered = VALIDATION.search(name)
        stem = numbered[0] if numbered else Path(name).stem
        if stem not in sets:
            raise FileError(f"labels: no set of labels for {name}; images are ILSVRC2012_val_00000001.JPEG and on")
        row[[order[label] for label in sets[stem]]] = True
    return table


def _read_sets(path: str | Path | None) -> dict[str, list[int]]:
    try:
        if path is None:
            text = (files("timm.data") / "_info" / "imagenet_real_labels.json").read_bytes()
        else:
            text = read_text(path).encode()
        sets = LABEL_SETS.validate_json(text)
    except (OSError, ValueError) as error:
        raise FileError(f"labels: {path} does not hold lists of labels 0 to 999, one list per image") from error
    if isinstance(sets, list):
        return {f"ILSVRC2012_val_{i:08d}": labels for i, labels in enumerate(sets, 1)}
    return {Path(name).stem: labels for name, labels in sets.items()}
