"""Evaluation of a classifier on a folder, archive or dataset, against one or two label sets."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sightline.data.labels import WAYS, in_words, match, real_labels
from sightline.data.splits import Split
from sightline.tasks.base import EvalOptions, Loaded, Scores
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data
from sightline.tasks.classification.data import data_section, open_split
from sightline.tasks.classification.predict import input_errors
from sightline.tasks.evaluation import Evaluation, evaluate_tables
from sightline.tasks.preprocess import at_size, one_pass
from sightline.util.errors import InputError
from sightline.util.names import format_size


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """Top-1, top-5 and balanced accuracy, calibration error and loss, with recall and precision per class.

    Args:
        data: folder, tar file, shards or hfds/NAME; a folder of classes is taken as one split.
        section: the section `data` of the run, or None.

    Returns:
        "usual", and "real" if `options.labels` is real or a JSON file.
    """
    if options.slide or options.scales or options.flip:
        raise InputError("slide, scales, flip: for segmentation; leave them out for a classifier")
    assert isinstance(loaded.card, ModelCard)
    assert section is None or isinstance(section, Data)
    chosen = data_section(data, section, options.split)
    split = open_split(replace(chosen, limit=options.limit), "val")
    outputs = int(loaded.model.num_classes)  # type: ignore[arg-type]
    known = loaded.classes or tuple(str(i) for i in range(outputs))
    way = options.labels if options.labels in WAYS else "names"
    if not loaded.classes and way == "names":
        way = "order"  # the names of these outputs are unknown
    positions = match(split.classes, known, way)
    tables = _tables(options.labels, split, positions, known)
    names = in_words(loaded.classes or _named_by_data(split, positions, known))
    card = loaded.card if options.img_size is None else at_size(loaded.card, options.img_size)
    broken: dict[str, None] = {}
    found = _run(loaded, card, split, tables, broken, options)
    notes = (*_limit_note(chosen, options), *split.notes)
    size = card.input_size[1:]
    return {
        key: Scores(
            one.scores,
            one.per_class(names) if int(one.total.targets.sum()) else [],
            one.confusion if one.confusion.numel() else None,
            one.images,
            one.seconds,
            split.title,
            size,
            tuple(broken),
            notes,
            int(one.total.nonfinite),
            {"classes": len(split.classes), "count": len(split)},
        )
        for key, one in found.items()
    }


def _run(
    loaded: Loaded, card: ModelCard, split: Split, tables: dict[str, Tensor], broken: dict[str, None],
    options: EvalOptions,
) -> dict[str, Evaluation]:  # fmt: skip
    """One pass over the images; fills `broken` with messages about those that are skipped."""
    size = format_size(card.input_size[1:])
    on_broken = broken.setdefault if options.on_error == "skip" else None
    cuda = options.device.type == "cuda"
    batches = one_pass(split, card, options.batch_size, options.workers, on_broken, cuda)
    model = loaded.model.to(options.device)
    with (
        options.progress(len(split), size) if options.progress else nullcontext() as advance,
        input_errors(loaded, size),
    ):
        return evaluate_tables(
            model, batches, int(model.num_classes), tables, device=options.device,  # type: ignore[arg-type]
            precision=options.precision, on_batch=advance,
        )  # fmt: skip


def _limit_note(data: Data, options: EvalOptions) -> list[str]:
    """A line for a run that used a part of its images if all of them are evaluated."""
    if data.limit is None or options.limit is not None:
        return []
    return [
        f"The run used the first {data.limit} images of every class (data.limit); all are evaluated here. Give "
        f"--limit {data.limit} to repeat its choice."
    ]


def _named_by_data(split: Split, positions: Sequence[int], known: Sequence[str]) -> list[str]:
    """Names for unnamed outputs: those of the data's classes."""
    names = list(known)
    for position, name in zip(positions, split.classes, strict=True):
        names[position] = name
    return names


def _tables(labels: str, split: Split, positions: Sequence[int], known: Sequence[str]) -> dict[str, Tensor]:
    """The label sets: an output per image, and for ReaL labels the set of outputs that are right."""
    tables = {"usual": torch.tensor([positions[target] for target in split.targets])}
    if labels not in WAYS:
        if labels != "real" and not Path(labels).is_file():
            raise InputError(f"labels: expected names, order, v2, real or a JSON file; got {labels!r}")
        files = [split.name(i) for i in range(len(split))]
        tables["real"] = real_labels(files, known, None if labels == "real" else labels)
    return tables
