"""What `sightline eval` does: a classifier, images and their labels put together, and evaluated at a size."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.classifier import Classifier, load_classifier
from sightline.cli.models import parse_model_args
from sightline.cli.options import UsageError
from sightline.util.names import format_size as times

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sightline.cli.eval import Options
    from sightline.tasks.classification.config import Data
    from sightline.tasks.classification.data import Split
    from sightline.tasks.evaluation import Evaluation

WAYS = ("names", "order", "v2")


@dataclass
class Result:
    """An evaluation at one size against one set of labels."""

    size: tuple[int, int]
    labels: str
    evaluation: "Evaluation"
    skipped: int

    def row(self) -> list[str]:
        """Cells of the table."""
        scores, found = self.evaluation.scores, self.evaluation
        percents = [
            "-" if scores[key] != scores[key] else f"{scores[key]:.2f}" for key in ("top1", "top5", "balanced", "ece")
        ]
        rate = found.images / found.seconds if found.seconds else 0.0
        return [times(self.size), self.labels, f"{found.images:,}", *percents, f"{scores['loss']:.4f}", f"{rate:,.0f}"]

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        """The same as data, with everything by class."""
        found, confusion = self.evaluation, self.evaluation.total.confusion
        facts: dict[str, Any] = {"img_size": list(self.size), "labels": self.labels, "images": found.images}
        facts.update({key: None if value != value else round(value, 4) for key, value in found})
        facts.update(
            skipped=self.skipped,
            nonfinite=int(found.total.nonfinite),
            seconds=round(found.seconds, 3),
            per_class=found.per_class(names) if int(found.total.targets.sum()) else None,
            confusion=confusion.tolist() if confusion.numel() else None,
        )
        return facts


@dataclass
class Job:
    """What is evaluated: a classifier and a split, with the tables of labels."""

    classifier: Classifier
    split: "Split"
    tables: "dict[str, Tensor]"
    names: list[str]
    device: "torch.device"
    notes: tuple[str, ...] = ()
    broken: dict[str, None] = field(default_factory=dict)


def prepare(options: "Options") -> Job:
    """The classifier, the images, and their labels."""
    from sightline.data.labels import in_words, match
    from sightline.tasks.classification.data import open_split

    assert options.checkpoint is not None
    from sightline.util.device import choose_device

    device = choose_device(options.device, "--device")
    classifier = load_classifier(options.checkpoint, options.model, parse_model_args(options.model_args))
    data = data_of(options.checkpoint, options.data, options.split)
    split = open_split(replace(data, limit=options.limit), "val")
    way = options.labels if options.labels in WAYS else "names"
    outputs = classifier.model.num_classes
    known = classifier.card.classes or tuple(str(i) for i in range(int(outputs)))  # type: ignore[arg-type]
    if not classifier.named and way == "names":
        way = "order"  # nobody knows the names of these outputs
    places = match(split.classes, known, way)
    tables = _tables(options, split, places, known)
    classifier.model.to(device)
    names = in_words(known if classifier.named else _names(split, places, known))
    return Job(classifier, split, tables, names, device, (*_limits(data, options), *split.notes))


def _limits(data: "Data", options: "Options") -> list[str]:
    """What to say where a run used a part of its images and all are evaluated."""
    if data.limit is None or options.limit is not None:
        return []
    return [
        f"The run used the first {data.limit} images of every class (data.limit); all are evaluated here. Give "
        f"--limit {data.limit} to repeat its choice."
    ]


def _names(split: "Split", places: Sequence[int], known: Sequence[str]) -> list[str]:
    """The names of outputs that have none of their own: those of the data's classes."""
    names = list(known)
    for place, name in zip(places, split.classes, strict=True):
        names[place] = name
    return names


def _tables(options: "Options", split: "Split", places: Sequence[int], known: Sequence[str]) -> "dict[str, Tensor]":
    import torch

    from sightline.data.labels import real_labels

    tables = {"usual": torch.tensor([places[target] for target in split.targets])}
    if options.labels not in WAYS:
        path = None if options.labels == "real" else options.labels
        if path is not None and not Path(path).is_file():
            raise UsageError(f"--labels: {path!r} is no file; give names, order, v2, real or a JSON file")
        files = [split.name(i) for i in range(len(split))]
        tables["real"] = real_labels(files, known, path)
    return tables


def data_of(checkpoint: str | None, given: str | None, split: str | None = None) -> "Data":
    """Where the images are: as given, else as in the configuration of the run."""
    from sightline.engine.settings import load_recipe, resolve
    from sightline.tasks.classification.config import Data

    config = Path(checkpoint or "") / "config.yaml"
    known = resolve({"data": load_recipe(str(config)).get("data") or {}}).data if config.is_file() else None
    if given is None:
        if known is None:
            raise UsageError("--data: say which images; only a run folder knows its own")
        return replace(known, val_split=split or known.val_split)
    path = Path(given)
    if not given.strip():
        raise UsageError("--data: the path is empty; give a folder, a tar file or hfds/NAME")
    columns = known or Data()
    data = Data(image_key=columns.image_key, label_key=columns.label_key)
    if split is None and path.is_dir() and _is_split(path):
        return replace(data, path=str(path.resolve().parent), val_split=path.resolve().name)
    return replace(data, path=given, val_split=split)


def _is_split(path: Path) -> bool:
    """Whether a folder holds the classes themselves instead of splits."""
    from sightline.tasks.classification.data import SPLITS

    names = [name for which in SPLITS.values() for name in which]
    inside = [item.name for item in path.iterdir()]
    return any((path / name).is_dir() for name in inside) and not any(
        item == name or (item.endswith(".tar") and name in item) for item in inside for name in names
    )


def evaluate_at(job: Job, size: tuple[int, int], options: "Options") -> list[Result]:
    """Evaluate at one size; a result for every set of labels."""
    from sightline.cli.output import bar
    from sightline.data.images import ImageError
    from sightline.tasks.classification.passes import one_pass
    from sightline.tasks.classification.preprocess import at_size
    from sightline.tasks.evaluation import evaluate_tables

    broken: dict[str, None] = {}
    card = at_size(job.classifier.card, size)
    on_broken = broken.setdefault if options.on_error == "skip" else None
    batches = one_pass(job.split, card, options.batch_size, options.workers, on_broken, job.device.type == "cuda")
    with bar(len(job.split), times(size)) as advance:
        try:
            found = evaluate_tables(
                job.classifier.model, batches, int(job.classifier.model.num_classes), job.tables,  # type: ignore[arg-type]
                device=job.device, precision=options.precision, on_batch=advance,
            )  # fmt: skip
        except ImageError as error:
            raise ImageError(f"{error}; repair or remove it, or pass --on-error skip") from error
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise UsageError(f"{job.classifier.title} failed on images of {times(size)}: {reason}") from error
    job.broken.update(broken)
    return [Result(size, name, evaluation, len(broken)) for name, evaluation in found.items()]
