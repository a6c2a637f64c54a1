"""`sightline eval`: evaluate a model, at any sizes and with any label sets."""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field

from sightline.cli.options import Command, model_arguments, option
from sightline.cli.output import Column, bar, number, print_json, show
from sightline.tasks.dense.config import BY_CLASS, DETECTION, SEGMENTATION
from sightline.util.files import check_writable, jsonable
from sightline.util.names import format_size, rate_cell
from sightline.util.schema import Count, Listed, ModelArgs, Name, Size, Workers
from sightline.util.text import say

if TYPE_CHECKING:
    from sightline.tasks.base import Row, Scores, Value

Facts = dict[str, Any]  # JSON
Found = list[tuple[str, "Scores"]]  # label set and scores, for every size
SCORES = (
    number("size"), Column("labels"), number("images"), number("top-1 %"), number("top-5 %"),
    number("balanced %", wide=True), number("ECE %"), number("loss", wide=True), number("images/s", wide=True),
)  # fmt: skip
CLASSES = (
    Column("class"), number("images"), number("accuracy %"), number("precision %"),
    Column("most often taken for", wide=True),
)  # fmt: skip
SEQUENCES = (
    Column("task"), Column("split"), number("examples"), number("accuracy %"), number("balanced %"), number("ECE %"),
    number("loss"), number("examples/s"),
)  # fmt: skip
SHOWN = 20  # classes in the table; of more, those with the lowest score


@dataclass(frozen=True)
class Options:
    """Evaluate a model: top-1 and top-5, accuracy per class, confusion matrix and calibration error (ECE) of a
    classifier; mIoU and accuracies of a segmenter; COCO AP of a detector; accuracy of a sequence model.

    The checkpoint is a run folder, a file that `sightline train` or `convert` wrote, or a public checkpoint as
    published. Classes are matched by name; folders of ImageNet may be called by WordNet number or, as in
    ImageNet-V2, by index.
    """

    checkpoint: str | None = option(
        "run folder, or file of weights; by default the model in the package", metavar="PATH"
    )
    data: str | None = option(
        "folder, tar file, shards, hfds/NAME or embedded; by default what the run was trained with", metavar="PATH"
    )
    split: Name | None = option("split of the data; by default val, validation or test", metavar="NAME")
    limit: Count | None = option("evaluate only the first N images per class", metavar="N")
    img_size: Listed[Size] = option(
        "sizes to evaluate at, 224,288,384x640 (height x width); by default that of training", default=(),
        metavar="SIZES",
    )  # fmt: skip
    labels: str = option(
        "names: classes by name; order: class i of the data is output i; v2: folders are indices of outputs; real: "
        "ImageNet's ReaL labels next to the usual ones; or a JSON file of label sets", default="names", metavar="WAY",
    )  # fmt: skip
    model: str | None = option(
        "the model, if the weights do not show it; without --checkpoint, its published weights are used", metavar="NAME"
    )
    model_args: ModelArgs = model_arguments()
    batch_size: Count = option("images per batch; by default 64", default=64, metavar="N")
    workers: Workers = option("processes that decode images; by default 2", default=2, metavar="N")
    device: str = option("cpu, cuda, mps; by default the GPU if there is one", default="auto", metavar="NAME")
    precision: Literal["no", "fp16", "bf16"] = option(
        "mixed precision: no, fp16 or bf16; by default no", default="no", metavar="KIND"
    )
    on_error: Literal["stop", "skip"] = option(
        "unreadable images: stop (default) or skip", default="stop", metavar="WHAT"
    )
    slide: bool = option("segmentation: slide overlapping windows of the training size over the image", default=False)
    scales: Listed[Annotated[float, Field(ge=0.1, le=8)]] | None = option(
        "segmentation: average over several scales, such as 0.5,0.75,1.0,1.25,1.5", metavar="SCALES"
    )
    flip: bool = option("segmentation: also average over the mirrored image", default=False)
    out: str | None = option(
        "folder for eval.json, scores by class as CSV and, except for detectors, the confusion matrix as CSV and PNG",
        metavar="FOLDER",
    )  # fmt: skip
    json: bool = option("print JSON, with scores per class and confusion matrices", default=False)


def run(options: Options) -> None:
    """Load, evaluate at every size, print."""
    from sightline.engine.evaluate import evaluate_label_sets
    from sightline.engine.results import write_scores
    from sightline.hub import load
    from sightline.tasks.base import EvalOptions
    from sightline.util.device import choose_device

    sizes: Sequence[tuple[int, int] | None] = list(dict.fromkeys(options.img_size)) or [None]
    if options.out is not None:
        check_writable(options.out, "--out")
    loaded = load(options.checkpoint, model=options.model, model_args=options.model_args)
    to_facts, show_scores = VIEWS[loaded.task]
    if not options.json:
        say(f"{loaded.card.title}, {loaded.parameters / 1e6:.2f} M parameters, from {loaded.path}")
    wanted = EvalOptions(
        choose_device(options.device, "--device"), options.split, options.limit, None, options.labels,
        options.batch_size, options.workers, options.precision, options.on_error, options.slide, options.scales or (),
        options.flip, bar,
    )  # fmt: skip
    with redirect_stdout(sys.stderr) if options.json else nullcontext():  # what is skipped is no part of the JSON
        found = [
            item
            for size in sizes
            for item in evaluate_label_sets(loaded, options.data, replace(wanted, img_size=size)).items()
        ]
    device = str(wanted.device)
    facts: Facts = {
        "checkpoint": str(loaded.path), "task": loaded.task, "model": loaded.card.title,
        "parameters": loaded.parameters, "device": device, **to_facts(found, options),
    }  # fmt: skip
    if options.json:
        print_json(facts)
    else:
        show_scores(found, device)
    if options.out is not None:
        written = write_scores(options.out, cast(Facts, jsonable(facts)))
        if not options.json:
            say(f"wrote {', '.join(map(str, written))}")


def _values(scores: "Scores") -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores}


def _tables(scores: "Scores") -> Facts:
    """The scores by class and, if the task has one, the confusion matrix."""
    matrix = {} if scores.confusion is None else {"confusion": scores.confusion.tolist()}
    return {"seconds": round(scores.seconds, 3), "per_class": scores.per_class or None, **matrix}


def _cell(value: "Value") -> str:
    """A name, a count or a percentage; `-` if there is none."""
    if isinstance(value, float):
        return "-" if value != value else f"{value:.2f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _show_classes(rows: "list[Row]", key: str, title: str, columns: Sequence[Column], where: str = "") -> None:
    """The rows that have a score `key`, whose name is `title`; of many, those with the lowest."""
    rows = [row for row in rows if _cell(row[key]) != "-"]
    heading = f"By class{where}:"
    if len(rows) > SHOWN:
        heading = f"The {SHOWN} classes with the lowest {title}{where}, of {len(rows)}:"
        rows = sorted(rows, key=lambda row: cast(float, row[key]))[:SHOWN]
    if rows:
        say("", f"{heading}")
        show(columns, [[str(row["class"]), *(_cell(row[key]) for key in row if key != "class")] for row in rows])


def _classifier_facts(found: Found, options: Options) -> Facts:
    first = found[0][1]
    broken = dict.fromkeys(message for _, scores in found for message in scores.broken)
    return {
        "data": first.data, "precision": options.precision, "classes": [row["class"] for row in first.per_class],
        "notes": list(first.notes), "broken": list(broken),
        "results": [
            {
                "img_size": list(scores.size or ()), "labels": labels, "images": scores.images, **_values(scores),
                "skipped": scores.skipped, "nonfinite": scores.nonfinite, "confusion": None, **_tables(scores),
            }
            for labels, scores in found
        ],
    }  # fmt: skip


def _show_classifier(found: Found, device: str) -> None:
    first = found[0][1]
    say(f"{first.details['count']:,} images of {first.details['classes']} classes in {first.data}, {device}")
    say(*first.notes, "")
    rows = []
    for labels, scores in found:
        percents = [_cell(scores[key]) for key in ("top1", "top5", "balanced", "ece")]
        rate = scores.images / scores.seconds if scores.seconds else 0.0
        size = format_size(scores.size or ())
        rows.append([size, labels, f"{scores.images:,}", *percents, f"{scores['loss']:.4f}", rate_cell(rate)])
    show(SCORES, rows)
    for _, scores in found:
        if scores.nonfinite:
            size = format_size(scores.size or ())
            say(f"{scores.nonfinite} images gave outputs that are not finite at {size}; they count as wrong")
    classes = [row | {"mistaken": _mistaken(i, first)} for i, row in enumerate(first.per_class)]
    _show_classes(classes, "recall", "accuracy", CLASSES, f" at {format_size(first.size or ())}")


def _mistaken(index: int, scores: "Scores") -> str:
    """The class that the images of a class are most often taken for, and how often."""
    if scores.confusion is None:
        return ""
    others = scores.confusion[index].clone()
    others[index] = 0
    count = int(others.max())
    return f"{scores.per_class[int(others.argmax())]['class']} ({count})" if count else ""


def _dense_facts(found: Found, options: Options) -> Facts:
    ((_, scores),) = found
    return {
        **scores.details, "data": scores.data, "precision": options.precision, "broken": list(scores.broken),
        "images": scores.images, "scores": _values(scores), "classes": [row["class"] for row in scores.per_class],
        **_tables(scores),
    }  # fmt: skip


def _show_dense(found: Found, device: str) -> None:
    ((_, scores),) = found
    say(f"{scores.images:,} images in {scores.data}, {device}, {scores.seconds:.1f} s", "")
    names = SEGMENTATION | DETECTION
    if not scores.images:
        say("No image could be used.")
    elif any(value == value for _, value in scores):
        show([number(f"{names[name]} %") for name, _ in scores], [[_cell(value) for _, value in scores]])
    else:
        say("Nothing in these images can be scored: no objects, or no pixels that count.")
    keys = [key for key in scores.per_class[0] if key != "class"]
    main = "iou" if "iou" in keys else keys[0]
    titles = [BY_CLASS[key] if key == "pixels" else f"{BY_CLASS[key]} %" for key in keys]
    _show_classes(scores.per_class, main, BY_CLASS[main], [Column("class"), *map(number, titles)])


def _sequence_facts(found: Found, options: Options) -> Facts:
    ((_, scores),) = found
    return {**scores.details, "examples": scores.images, **_values(scores), "confusion": None, **_tables(scores)}


def _show_sequences(found: Found, device: str) -> None:
    ((_, scores),) = found
    if scores.details["cut"]:
        say(f"{scores.details['cut']:,} sequences were cut")
    numbers = [_cell(scores[key]) for key in ("top1", "balanced", "ece")]
    cells = [str(scores.details["task"]), str(scores.details["split"]), f"{scores.images:,}", *numbers]
    show(SEQUENCES, [[*cells, f"{scores['loss']:.4f}", rate_cell(scores.images / scores.seconds)]])


# How the scores of a task become JSON and tables.
VIEWS: dict[str, tuple[Callable[[Found, Options], Facts], Callable[[Found, str], None]]] = {
    "classification": (_classifier_facts, _show_classifier),
    "segmentation": (_dense_facts, _show_dense),
    "detection": (_dense_facts, _show_dense),
    "sequences": (_sequence_facts, _show_sequences),
}

COMMAND = Command(
    Options,
    run,
    help="evaluate a classifier, segmenter, detector or sequence model",
    examples=(
        "  sightline eval --data imagenet\n"
        "  sightline eval --checkpoint runs/quick\n"
        "  sightline eval --checkpoint public.pth --data imagenet --img-size 224,288,384\n"
        "  sightline eval --checkpoint public.pth --data imagenet --labels real --json\n"
        "  sightline eval --checkpoint public.pth --data imagenetv2-matched-frequency-format-val --labels v2"
    ),
)
