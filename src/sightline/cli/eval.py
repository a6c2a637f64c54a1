"""`sightline eval`: evaluate a model, at any sizes and with any label sets."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sightline.cli.options import Command, option
from sightline.cli.output import Column, bar, show
from sightline.tasks.dense.config import BY_CLASS, DETECTION, SEGMENTATION
from sightline.util.errors import InputError
from sightline.util.files import check_writable
from sightline.util.names import format_size, parse_model_args, parse_sizes

if TYPE_CHECKING:
    from sightline.tasks.base import Row, Scores

Facts = dict[str, Any]  # JSON
Found = list[tuple[str, "Scores"]]  # label set and scores, for every size
SCORES = (
    Column("size", right=True), Column("labels"), Column("images", right=True), Column("top-1 %", right=True),
    Column("top-5 %", right=True), Column("balanced %", right=True, wide=True), Column("ECE %", right=True),
    Column("loss", right=True, wide=True), Column("images/s", right=True, wide=True),
)  # fmt: skip
CLASSES = (
    Column("class"), Column("images", right=True), Column("accuracy %", right=True), Column("precision %", right=True),
    Column("most often taken for", wide=True),
)  # fmt: skip
SEQUENCES = (
    Column("task"), Column("split"), Column("examples", right=True), Column("accuracy %", right=True),
    Column("balanced %", right=True), Column("ECE %", right=True), Column("loss", right=True),
    Column("examples/s", right=True),
)  # fmt: skip
SHOWN = 20  # classes in the table; of more, those with the lowest score


@dataclass(frozen=True)
class Options:
    """Evaluate a model: top-1 and top-5, accuracy per class, confusion matrix and calibration error (ECE) of a
    classifier; mIoU and accuracies of a segmenter; COCO's average precision of a detector; a model of sequences.

    The checkpoint is a run folder, a file that `sightline train` or `convert` wrote, or a public checkpoint as
    published. Classes are matched by name; folders of ImageNet may be called by WordNet number or, as in
    ImageNet-V2, by index.
    """

    checkpoint: str | None = option("run folder, or file of weights", metavar="PATH")
    data: str | None = option(
        "folder, tar file, shards or hfds/NAME; by default what the run was trained with", metavar="PATH"
    )
    split: str | None = option("split of the data; by default val, validation or test", metavar="NAME")
    limit: int | None = option("evaluate only the first N images per class", metavar="N")
    img_size: tuple[str, ...] = option(
        "sizes to evaluate at, 224,288,384x640 (height x width); by default that of training", default=(),
        metavar="SIZES",
    )  # fmt: skip
    labels: str = option(
        "names: classes by name; order: class i of the data is output i; v2: folders are indices of outputs; real: "
        "ImageNet's ReaL labels next to the usual ones; or a JSON file of label sets", default="names", metavar="WAY",
    )  # fmt: skip
    model: str | None = option("the model, if the weights do not show it", metavar="NAME")
    model_args: tuple[str, ...] = option(
        "arguments of the model, as key=value or a JSON object; can be repeated", default=(), metavar="ARGS"
    )
    batch_size: int = option("images per batch; by default 64", default=64, metavar="N")
    workers: int = option("processes that decode images; by default 2", default=2, metavar="N")
    device: str = option("cpu, cuda, mps; by default the GPU if there is one", default="auto", metavar="NAME")
    precision: Literal["no", "fp16", "bf16"] = option(
        "mixed precision: no, fp16 or bf16; by default no", default="no", metavar="KIND"
    )
    on_error: Literal["stop", "skip"] = option(
        "unreadable images: stop (default) or skip", default="stop", metavar="WHAT"
    )
    slide: bool = option("segmentation: slide overlapping windows of the training size over the image", default=False)
    scales: str | None = option(
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

    if options.checkpoint is None:
        raise InputError("--checkpoint: expected a run folder or a file of weights; got none")
    sizes: Sequence[tuple[int, int] | None] = parse_sizes(options.img_size) if options.img_size else [None]
    scales = parse_scales(options.scales)
    if options.out is not None:
        check_writable(options.out, "--out")
    loaded = load(options.checkpoint, model=options.model, model_args=parse_model_args(options.model_args))
    view = VIEWS.get(loaded.task, DENSE)
    if not options.json:
        print(f"{loaded.card.title}, {loaded.parameters / 1e6:.2f} M parameters, from {loaded.path}")
    wanted = EvalOptions(
        choose_device(options.device, "--device"), options.split, options.limit, None, options.labels,
        options.batch_size, options.workers, options.precision, options.on_error, options.slide, scales, options.flip,
        bar,
    )  # fmt: skip
    with redirect_stdout(sys.stderr) if options.json else nullcontext():  # what is skipped is no part of the JSON
        found = [
            item
            for size in sizes
            for item in evaluate_label_sets(loaded, options.data, replace(wanted, img_size=size)).items()
        ]
    device = str(wanted.device)
    common = {
        "checkpoint": str(loaded.path), "model": loaded.title, "parameters": loaded.parameters, "device": device,
    }  # fmt: skip
    facts = common | ({"task": loaded.task} if view is DENSE else {}) | view.facts(found, options)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        view.show(found, device)
    if options.out is not None:
        written = write_scores(options.out, facts)
        if not options.json:
            print(f"wrote {', '.join(map(str, written))}")


def parse_scales(text: str | None) -> tuple[float, ...]:
    """`0.5,1.0,1.5` -> (0.5, 1.0, 1.5); empty if nothing is given."""
    try:
        scales = tuple(float(part) for part in text.split(",")) if text is not None else ()
        if all(0.1 <= scale <= 8 for scale in scales):
            return scales
    except ValueError:
        pass
    raise InputError(f"--scales: expected comma-separated factors between 0.1 and 8, e.g. 0.5,0.75,1.0; got {text!r}")


class View(NamedTuple):
    """How the scores of a task become JSON and tables."""

    facts: Callable[[Found, Options], Facts]
    show: Callable[[Found, str], None]


def _rounded(scores: "Scores") -> dict[str, float | None]:
    return {name: None if value != value else round(value, 4) for name, value in scores}


def _percent(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def _classifier_facts(found: Found, options: Options) -> Facts:
    first = found[0][1]
    return {
        "data": first.data, "precision": options.precision, "classes": [row["class"] for row in first.per_class],
        "notes": list(first.notes), "broken": list(dict.fromkeys(b for _, scores in found for b in scores.broken)),
        "results": [
            {
                "img_size": list(scores.size or ()), "labels": labels, "images": scores.images, **_rounded(scores),
                "skipped": scores.skipped, "nonfinite": scores.nonfinite, "seconds": round(scores.seconds, 3),
                "per_class": scores.per_class or None,
                "confusion": None if scores.confusion is None else scores.confusion.tolist(),
            }
            for labels, scores in found
        ],
    }  # fmt: skip


def _show_classifier(found: Found, device: str) -> None:
    first = found[0][1]
    print(f"{first.details['count']:,} images of {first.details['classes']} classes in {first.data}, {device}")
    print("".join(f"{note}\n" for note in first.notes))
    rows = []
    for labels, scores in found:
        percents = [_percent(scores[key]) for key in ("top1", "top5", "balanced", "ece")]
        rate = scores.images / scores.seconds if scores.seconds else 0.0
        size = format_size(scores.size or ())
        rows.append([size, labels, f"{scores.images:,}", *percents, f"{scores['loss']:.4f}", f"{rate:,.0f}"])
    show(SCORES, rows)
    for message in dict.fromkeys(b for _, scores in found for b in scores.broken):
        print(f"skipped: {message}")
    for _, scores in found:
        if scores.nonfinite:
            size = format_size(scores.size or ())
            print(f"{scores.nonfinite} images gave outputs that are not finite at {size}; they count as wrong")
    classes = [(i, row) for i, row in enumerate(first.per_class) if row["images"]]
    title = f"By class at {format_size(first.size or ())}:"
    if len(classes) > SHOWN:
        title = f"The {SHOWN} classes with the lowest accuracy at {format_size(first.size or ())}, of {len(classes)}:"
        classes = sorted(classes, key=lambda item: item[1]["recall"])[:SHOWN]  # type: ignore[arg-type,return-value]
    print(f"\n{title}")
    show(CLASSES, [_class_row(i, row, first) for i, row in classes])


def _class_row(index: int, row: "Row", scores: "Scores") -> list[str]:
    mistaken = ""
    if scores.confusion is not None:
        others = scores.confusion[index].clone()
        others[index] = 0
        count = int(others.max())
        mistaken = f"{scores.per_class[int(others.argmax())]['class']} ({count})" if count else ""
    numbers = [_percent(row[key], 1) for key in ("recall", "precision")]  # type: ignore[arg-type]
    return [str(row["class"]), f"{row['images']:,}", *numbers, mistaken]


def _dense_facts(found: Found, options: Options) -> Facts:
    ((_, scores),) = found
    facts: Facts = {
        **scores.details, "data": scores.data, "precision": options.precision, "broken": list(scores.broken),
        "images": scores.images, "seconds": round(scores.seconds, 3), "scores": _rounded(scores),
        "classes": [row["class"] for row in scores.per_class], "per_class": _finite(scores.per_class),
    }  # fmt: skip
    return facts if scores.confusion is None else facts | {"confusion": scores.confusion.tolist()}


def _show_dense(found: Found, device: str) -> None:
    ((_, scores),) = found
    print(f"{scores.images:,} images in {scores.data}, {device}, {scores.seconds:.1f} s\n")
    names = SEGMENTATION | DETECTION
    if not scores.images:
        print("No image could be used.")
    elif any(value == value for _, value in scores):
        show([Column(f"{names[name]} %", right=True) for name, _ in scores], [[_percent(value) for _, value in scores]])
    else:
        print("Nothing in these images can be scored: no objects, or no pixels that count.")
    keys = [key for key in scores.per_class[0] if key != "class"]
    first = "iou" if "iou" in keys else keys[0]
    rows = [row for row in _finite(scores.per_class) if row[first] is not None]
    if not rows:
        return
    title = "By class:"
    if len(rows) > SHOWN:
        title = f"The {SHOWN} classes with the lowest {BY_CLASS[first]}, of {len(rows)}:"
        rows = sorted(rows, key=lambda row: row[first])[:SHOWN]
    print(f"\n{title}")
    titles = [BY_CLASS[key] if key == "pixels" else f"{BY_CLASS[key]} %" for key in keys]
    columns = [Column("class"), *(Column(title, right=True) for title in titles)]
    show(columns, [[row["class"], *(_cell(row[key]) for key in keys)] for row in rows])


def _finite(rows: "list[Row]") -> list[Facts]:
    return [{key: None if value != value else value for key, value in row.items()} for row in rows]


def _cell(value: float | None) -> str:
    return f"{value:,}" if isinstance(value, int) else _percent(value)


def _sequence_facts(found: Found, options: Options) -> Facts:
    ((_, scores),) = found
    return {
        **scores.details, "examples": scores.images, "seconds": round(scores.seconds, 3), **_rounded(scores),
        "per_class": scores.per_class,
        "confusion": None if scores.confusion is None else scores.confusion.tolist(),
    }  # fmt: skip


def _show_sequences(found: Found, device: str) -> None:
    ((_, scores),) = found
    if scores.details["cut"]:
        print(f"{scores.details['cut']:,} sequences were cut")
    numbers = [_percent(scores[key]) for key in ("top1", "balanced", "ece")]
    cells = [str(scores.details["task"]), str(scores.details["split"]), f"{scores.images:,}", *numbers]
    show(SEQUENCES, [[*cells, f"{scores['loss']:.4f}", f"{scores.images / scores.seconds:,.0f}"]])


DENSE = View(_dense_facts, _show_dense)
VIEWS = {
    "classification": View(_classifier_facts, _show_classifier),
    "sequences": View(_sequence_facts, _show_sequences),
}

COMMAND = Command(
    Options,
    run,
    help="evaluate a classifier, segmenter, detector or model of sequences",
    examples=(
        "  sightline eval --checkpoint runs/quick\n"
        "  sightline eval --checkpoint public.pth --data imagenet --img-size 224,288,384\n"
        "  sightline eval --checkpoint public.pth --data imagenet --labels real --json\n"
        "  sightline eval --checkpoint public.pth --data imagenetv2-matched-frequency-format-val --labels v2"
    ),
)
