"""Evaluation of a classifier on a folder, archive or dataset, against one or two label sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sightline.data.labels import WAYS, in_words, match, real_labels
from sightline.data.loader import BrokenImages
from sightline.data.splits import Split
from sightline.tasks.base import SKIP, EvalOptions, Loaded, Row, Scores
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data
from sightline.tasks.classification.data import data_section, open_split
from sightline.tasks.classification.predict import input_errors
from sightline.tasks.evaluation import Gather, LabelBatch, LabelScorer, Reduce, Scorer, run_scorer
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
    assert isinstance(loaded.card, ModelCard)
    assert section is None or isinstance(section, Data)
    chosen = data_section(data, section, options.split)
    split = open_split(replace(chosen, limit=options.limit), "val")
    known = loaded.classes or tuple(str(i) for i in range(loaded.model.num_classes))  # type: ignore[arg-type]
    way = options.labels if options.labels in WAYS else "names"
    if not loaded.classes and way == "names":
        way = "order"  # the names of these outputs are unknown
    positions = match(split.classes, known, way)
    names = in_words(loaded.classes or _named_by_data(split, positions, known))
    scorer = LabelSetScorer(names, options.device, _tables(options.labels, split, positions, known))
    card = at_size(loaded.card, options.img_size)
    broken = BrokenImages(options.on_error, SKIP)
    pin = options.device.type == "cuda"
    batches = one_pass(split, card, options.batch_size, options.workers, broken.add, pin)
    with input_errors(loaded, card):
        found = run_scorer(scorer, loaded.model, batches, options, len(split), format_size(card.input_size[1:]))
    notes = (*_limit_note(chosen, options), *split.notes)
    details: Row = {"classes": len(split.classes), "count": len(split)}
    return {
        key: replace(
            scores, data=split.title, size=card.input_size[1:], broken=tuple(broken.messages), notes=notes,
            details=details,
        )
        for key, scores in found.items()
    }  # fmt: skip


class LabelSetScorer(Scorer[LabelBatch, dict[str, Scores]]):
    """Scores against several tables of labels, indexed by the batches, in one pass."""

    def __init__(self, names: Sequence[str], device: torch.device, tables: Mapping[str, Tensor]) -> None:
        super().__init__(device)
        self.scorers = {key: LabelScorer(names, device, table) for key, table in tables.items()}

    def add(self, model: nn.Module, batch: LabelBatch) -> int:
        images, indices = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        logits = model(images)
        for scorer in self.scorers.values():
            scorer.count(logits, indices)
        return len(images)

    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> dict[str, Scores]:
        return {key: scorer.result(reduce, gather, seconds) for key, scorer in self.scorers.items()}


def _limit_note(data: Data, options: EvalOptions) -> list[str]:
    """A line for a run that used a part of its images if all of them are evaluated."""
    if data.limit is None or options.limit is not None:
        return []
    return [
        f"The run used the first {data.limit} images of every class (data.limit); all are evaluated here; a limit "
        f"of {data.limit} repeats its choice."
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
