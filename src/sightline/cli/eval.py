"""`sightline eval`: how good a classifier is, at any sizes, against any label sets."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sightline.cli import eval_sequences
from sightline.cli.dense import find_dense
from sightline.cli.dense_eval import run_dense
from sightline.cli.evaluation import Job, Result, evaluate_at, prepare
from sightline.cli.options import Command, UsageError, option, refuse_given
from sightline.cli.output import Column, check_writable, show, write_results
from sightline.util.names import format_size as times
from sightline.util.names import parse_sizes

SCORES = (
    Column("size", right=True), Column("labels"), Column("images", right=True), Column("top-1 %", right=True),
    Column("top-5 %", right=True), Column("balanced %", right=True, wide=True), Column("ECE %", right=True),
    Column("loss", right=True, wide=True), Column("images/s", right=True, wide=True),
)  # fmt: skip
CLASSES = (
    Column("class"), Column("images", right=True), Column("accuracy %", right=True), Column("precision %", right=True),
    Column("most often taken for", wide=True),
)  # fmt: skip
SHOWN = 20  # classes in the table; of more, those with the lowest accuracy


@dataclass(frozen=True)
class Options:
    """Evaluate a classifier: top-1 and top-5, accuracy by class, confusion matrix, calibration error (ECE); a
    segmenter: mIoU and accuracies; a detector: COCO's average precision of boxes and masks; a model of sequences.

    The checkpoint is a run folder, a file that `sightline train` or `convert` wrote, or a public checkpoint as
    published. Classes are matched by name; folders of ImageNet may be called by WordNet number or, as in
    ImageNet-V2, by place.
    """

    checkpoint: str | None = option("run folder, or file of weights", metavar="PATH")
    data: str | None = option(
        "folder, tar file, shards or hfds/NAME; by default what the run was trained with", metavar="PATH"
    )
    split: str | None = option("split of the data; by default val, validation or test", metavar="NAME")
    limit: int | None = option("evaluate the first images of every class only, this many", metavar="N")
    img_size: tuple[str, ...] = option(
        "sizes to evaluate at, 224,288,384x640 (height x width); by default that of training", default=(),
        metavar="SIZES",
    )  # fmt: skip
    labels: str = option(
        "names: classes by name; order: as they come; v2: folders are places of outputs; real: the ReaL labels of "
        "ImageNet beside the usual ones; or a JSON file of such sets", default="names", metavar="WAY",
    )  # fmt: skip
    model: str | None = option("the model, where the weights do not show it", metavar="NAME")
    model_args: tuple[str, ...] = option(
        "arguments of the model, as key=value or a JSON object; may be repeated", default=(), metavar="ARGS"
    )
    batch_size: int = option("images of a batch; by default 64", default=64, metavar="N")
    workers: int = option("processes that decode images; by default 2", default=2, metavar="N")
    device: str = option("cpu, cuda, mps; by default what there is", default="auto", metavar="NAME")
    precision: Literal["no", "fp16", "bf16"] = option(
        "mixed precision: no, fp16 or bf16; by default no", default="no", metavar="KIND"
    )
    on_error: Literal["stop", "skip"] = option(
        "on an unreadable image: stop (default) or skip it", default="stop", metavar="WHAT"
    )
    slide: bool = option("segmentation: by overlapping windows of the size of training", default=False)
    scales: str | None = option("segmentation: average over scales, such as 0.5,0.75,1.0,1.25,1.5", metavar="SCALES")
    flip: bool = option("segmentation: average over the mirror image too", default=False)
    out: str | None = option(
        "folder for eval.json, a CSV file by class, and but for detectors the confusion matrix as CSV and a picture",
        metavar="FOLDER",
    )  # fmt: skip
    json: bool = option("print JSON, with per-class scores and confusion matrices", default=False)


def run(options: Options) -> None:
    """Load, evaluate at every size, print."""
    if options.checkpoint is None:
        raise UsageError("--checkpoint: say which weights: a run folder, or a file")
    if options.batch_size < 1 or options.workers < 0:
        raise UsageError("--batch-size and --workers: give at least one image a batch and no fewer than 0 processes")
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit: {options.limit} is not a number of images; give at least 1")
    if options.out is not None:
        check_writable(options.out, "--out")
    if (dense := find_dense(options.checkpoint)) is not None:
        return run_dense(options, *dense)
    if (sequences := eval_sequences.weights_of(options.checkpoint)) is not None:
        return eval_sequences.run(options, sequences)
    from sightline.tasks.describe import describe

    refuse_given(
        {"--slide": options.slide, "--scales": options.scales, "--flip": options.flip},
        "for segmentation; leave it out for a classifier",
    )
    job = prepare(options)
    card = job.classifier.card
    sizes = parse_sizes(options.img_size) if options.img_size else [card.input_size[1:]]
    if not options.json:
        millions = job.classifier.parameters / 1e6
        words = describe(card.name, card.arguments)
        print(f"{words}, {millions:.2f} M parameters, from {job.classifier.path}")
        print(f"{len(job.split):,} images of {len(job.split.classes)} classes in {job.split.title}, {job.device}")
        print("".join(f"{note}\n" for note in job.notes))
    results = [result for size in sizes for result in evaluate_at(job, size, options)]
    facts = {
        "checkpoint": str(job.classifier.path),
        "model": job.classifier.title,
        "parameters": job.classifier.parameters,
        "data": job.split.title,
        "device": str(job.device),
        "precision": options.precision,
        "classes": job.names,
        "notes": list(job.notes),
        "broken": list(job.broken),
        "results": [result.facts(job.names) for result in results],
    }
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _print(job, results)
    if options.out is not None:
        written = write_results(Path(options.out), facts)
        if not options.json:
            print(f"wrote {', '.join(map(str, written))}")


def _print(job: Job, results: list[Result]) -> None:
    show(SCORES, [result.row() for result in results])
    for message in job.broken:
        print(f"skipped: {message}")
    for result in results:
        if nonfinite := int(result.evaluation.total.nonfinite):
            print(f"{nonfinite} images gave outputs that are not finite at {times(result.size)}; they count as wrong")
    first = results[0]
    rows = [row for row in first.evaluation.per_class(job.names) if row["images"]]
    if len(rows) > SHOWN:
        print(f"\nThe {SHOWN} classes with the lowest accuracy at {times(first.size)}, of {len(rows)}:")
        rows = sorted(rows, key=lambda row: row["recall"])[:SHOWN]
    else:
        print(f"\nBy class at {times(first.size)}:")
    places = {name: i for i, name in reversed(list(enumerate(job.names)))}
    show(CLASSES, [_class_row(row, places[row["class"]], job.names, first) for row in rows])


def _class_row(row: dict[str, Any], place: int, names: Sequence[str], result: Result) -> list[str]:
    confusion = result.evaluation.total.confusion
    mistaken = ""
    if confusion.numel():
        others = confusion[place].clone()
        others[place] = 0
        count = int(others.max())
        mistaken = f"{names[int(others.argmax())]} ({count})" if count else ""
    precision = "-" if row["precision"] is None else f"{row['precision']:.1f}"
    return [row["class"], f"{row['images']:,}", f"{row['recall']:.1f}", precision, mistaken]


COMMAND = Command(
    Options,
    run,
    help="how good a classifier, segmenter or detector is, at any sizes",
    examples=(
        "  sightline eval --checkpoint runs/quick\n"
        "  sightline eval --checkpoint public.pth --data imagenet --img-size 224,288,384\n"
        "  sightline eval --checkpoint public.pth --data imagenet --labels real --json\n"
        "  sightline eval --checkpoint public.pth --data imagenetv2-matched-frequency-format-val --labels v2"
    ),
)
