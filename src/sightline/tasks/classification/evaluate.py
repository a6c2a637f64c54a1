"""Evaluation of a classifier on a folder, archive or dataset, against one or two label sets."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sightline.data.labels import WAYS, in_words, match, real_labels
from sightline.data.splits import Split
from sightline.tasks.base import EvalOptions, Loaded, Scores
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data
from sightline.tasks.classification.data import data_section, open_split
from sightline.tasks.classification.predict import input_errors
from sightline.tasks.evaluation import Gather, LabelBatch, LabelScorer, Reduce, Result, Scorer
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
            one.values,
            one.per_class(names) if sum(one.by_class["images"]) else [],
            one.confusion if one.confusion is not None and one.confusion.numel() else None,
            one.images,
            one.seconds,
            split.title,
            size,
            tuple(broken),
            notes,
            one.nonfinite,
            {"classes": len(split.classes), "count": len(split)},
        )
        for key, one in found.items()
    }


def _run(
    loaded: Loaded, card: ModelCard, split: Split, tables: dict[str, Tensor], broken: dict[str, None],
    options: EvalOptions,
) -> dict[str, Result]:  # fmt: skip
    """One pass over the images; fills `broken` with messages about those that are skipped."""
    size, model = format_size(card.input_size[1:]), loaded.model.to(options.device)
    on_broken = broken.setdefault if options.on_error == "skip" else None
    pin = options.device.type == "cuda"
    batches = one_pass(split, card, options.batch_size, options.workers, on_broken, pin)
    scorer = LabelSetScorer(int(model.num_classes), options.device, tables)  # type: ignore[arg-type]
    bar = options.progress(len(split), size) if options.progress else nullcontext()
    with bar as advance, input_errors(loaded, size):
        return scorer.evaluate(model, batches, options.precision, on_batch=advance)


class LabelSetScorer(Scorer[LabelBatch, dict[str, Result]]):
    """Scores against several tables of labels, indexed by the batches, in one pass."""

    def __init__(self, classes: int, device: torch.device, tables: Mapping[str, Tensor]) -> None:
        super().__init__(device)
        self.scorers = {name: LabelScorer(classes, device, table) for name, table in tables.items()}

    def add(self, model: nn.Module, batch: LabelBatch) -> int:
        images, indices = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        logits = model(images)
        for scorer in self.scorers.values():
            scorer.count(logits, indices)
        return len(images)

    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> dict[str, Result]:
        return {name: scorer.result(reduce, gather, seconds) for name, scorer in self.scorers.items()}


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
