"""`sightline eval` of segmenters and detectors."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.dense import DenseModel, inference_of, load_dense
from sightline.cli.options import UsageError, refuse_given
from sightline.cli.output import Column, show, write_facts, write_tables
from sightline.tasks.dense.names import BY_CLASS, DETECTION, SEGMENTATION

if TYPE_CHECKING:
    import torch

    from sightline.cli.eval import Options
    from sightline.tasks.dense.card import DenseCard

SKIP = "--on-error skip"
SHOWN = 20  # classes in the table; of more, those with the lowest score


def run_dense(options: "Options", path: Path, card: "DenseCard") -> None:
    """Load, evaluate, print, and write eval.json with tables where a folder is given."""
    from sightline.util.device import choose_device
    from sightline.util.files import jsonable

    _refuse(options, card)
    device = choose_device(options.device, "--device")
    loaded = load_dense(path, card, device)
    data = _data(options, card)
    score = _segmentation if card.task == "segmentation" else _detection
    with redirect_stdout(sys.stderr) if options.json else nullcontext():  # what is skipped is no part of the JSON
        result, images, broken = score(options, loaded, data, device)
    rows: Any = jsonable(result.per_class(card.classes))
    facts = {
        "checkpoint": str(path), "model": loaded.title, "parameters": loaded.parameters, "task": card.task,
        "data": images, "device": str(device), "precision": options.precision, "broken": list(broken),
        "images": result.images, "seconds": round(result.seconds, 3),
        "scores": {k: round(v, 4) if v == v else None for k, v in result},
        "classes": list(card.classes), "per_class": rows,
    }  # fmt: skip
    if result.confusion is not None:
        facts["confusion"] = result.confusion.tolist()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _print(loaded, facts)
    if options.out is not None:
        written = [write_facts(Path(options.out), facts)]
        written += write_tables(Path(options.out), card.classes, rows, facts.get("confusion"))
        if not options.json:
            print(f"wrote {', '.join(map(str, written))}")


def _refuse(options: "Options", card: "DenseCard") -> None:
    """Refuse what is meant for others."""
    what = "a segmenter" if card.task == "segmentation" else "a detector"
    classifiers = {
        "--img-size": options.img_size, "--labels": options.labels != "names", "--model": options.model,
        "--model-args": options.model_args,
    }  # fmt: skip
    refuse_given(classifiers, f"for classifiers; leave it out for {what}")
    if card.task != "segmentation":
        refuse_given(
            {"--slide": options.slide, "--scales": options.scales, "--flip": options.flip},
            f"for segmentation; leave it out for {what}",
        )


def _print(loaded: DenseModel, facts: dict[str, Any]) -> None:
    print(f"{loaded.title}, {loaded.parameters / 1e6:.2f} M parameters, from {loaded.path}")
    print(f"{facts['images']:,} images in {facts['data']}, {facts['device']}, {facts['seconds']:.1f} s\n")
    scores, words = facts["scores"], SEGMENTATION | DETECTION
    if not facts["images"]:
        print("No image could be used.")
    elif any(value is not None for value in scores.values()):
        show([Column(f"{words[name]} %", right=True) for name in scores], [[_cell(value) for value in scores.values()]])
    else:
        print("Nothing in these images can be scored: no objects, or no pixels that count.")
    rows = facts["per_class"]
    keys = [key for key in rows[0] if key != "class"]
    first = "iou" if "iou" in keys else keys[0]
    rows = [row for row in rows if row[first] is not None]
    if not rows:
        return
    if len(rows) > SHOWN:
        print(f"\nThe {SHOWN} classes with the lowest {BY_CLASS[first]}, of {len(rows)}:")
        rows = sorted(rows, key=lambda row: row[first])[:SHOWN]
    else:
        print("\nBy class:")
    titles = [BY_CLASS[key] if key == "pixels" else f"{BY_CLASS[key]} %" for key in keys]
    columns = [Column("class"), *(Column(title, right=True) for title in titles)]
    show(columns, [[row["class"], *(_cell(row[key]) for key in keys)] for row in rows])


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _data(options: "Options", card: "DenseCard") -> Any:
    """Where the images are: as given, else as in the configuration of the run."""
    from sightline.engine.settings import load_recipe, resolve
    from sightline.tasks.registry import TASKS

    config = Path(options.checkpoint or "") / "config.yaml"
    if config.is_file():
        run = resolve(load_recipe(str(config)))
        if run.task != card.task:
            raise UsageError(f"{config}: of {run.task}, but the weights are of {card.task}; give the file of weights")
        data = run.data
    elif options.data is None:
        raise UsageError("--data: say which images; only a run folder knows its own")
    else:
        data = TASKS[card.task].config().data
    if options.data is not None:
        data = replace(data, path=options.data)
    split = options.split or data.val_split
    head = {key: card.head[key] for key in ("short", "long")}
    return replace(
        data, val_split=split, limit=options.limit, on_error=options.on_error, workers=options.workers, **head
    )


def _batches(options: "Options", items: Any, count: int, broken: dict[str, None]) -> Any:
    """The items of a split in order; what cannot be used stops, or is noted."""
    from sightline.data.loader import close_loader
    from sightline.tasks.dense.loading import Keys, make_loader
    from sightline.tasks.dense.reporting import Broken

    keys, note = Keys(), Broken(options.on_error, SKIP)
    note.messages = broken
    size = options.batch_size
    keys.keys = lambda: iter([[(i, 0) for i in range(s, min(s + size, count))] for s in range(0, count, size)])
    loader = make_loader(items, keys, options.workers)
    try:
        for loaded in loader:
            note.note(loaded)
            yield loaded.items
    finally:
        close_loader(loader)


def _segmentation(options: "Options", loaded: DenseModel, data: Any, device: "torch.device") -> tuple[Any, str, Any]:
    from sightline.cli.output import bar
    from sightline.tasks.dense.loading import Items
    from sightline.tasks.segmentation.data import open_split
    from sightline.tasks.segmentation.evaluate import evaluate
    from sightline.tasks.segmentation.task import Reader
    from sightline.tasks.segmentation.transforms import EvalTransform

    card = loaded.card
    split = open_split(data, "val", skip=SKIP)
    if split.classes != card.classes:
        raise UsageError(f"--data: the classes of {split.title} are not those of {loaded.path}; give the same classes")
    test = inference_of(card, options.slide, parse_scales(options.scales), options.flip)
    broken: dict[str, None] = {}
    items = Items(len(split), Reader(split, EvalTransform(data), train=False), False)
    with bar(len(split), "images") as advance:
        result = evaluate(
            loaded.model, _batches(options, items, len(split), broken), len(card.classes), test, card.input_size[1:],
            card.mean, card.std, device=device, precision=options.precision, on_batch=advance,
        )  # fmt: skip
    return result, split.title, broken


def _detection(options: "Options", loaded: DenseModel, data: Any, device: "torch.device") -> tuple[Any, str, Any]:
    from sightline.cli.output import bar
    from sightline.tasks.dense.loading import Items
    from sightline.tasks.detection.data import open_split
    from sightline.tasks.detection.model import has_masks
    from sightline.tasks.detection.task import EvalReader, evaluate
    from sightline.tasks.detection.transforms import EvalTransform

    card = loaded.card
    masks = has_masks(card.head["name"])
    split = open_split(data, "val", masks=masks, skip=SKIP)
    if split.classes != card.classes:
        raise UsageError(f"--data: the classes of {split.title} are not those of {loaded.path}; give the same classes")
    broken: dict[str, None] = {}
    items = Items(len(split), EvalReader(split, EvalTransform(data.short, data.long)), False)
    with bar(len(split), "images") as advance:
        result = evaluate(
            loaded.model, _batches(options, items, len(split), broken), split, card.mean, card.std, masks,
            device=device, precision=options.precision, on_batch=advance,
        )  # fmt: skip
    return result, split.title, broken


def parse_scales(text: str | None) -> tuple[float, ...]:
    """`0.5,1.0,1.5` -> (0.5, 1.0, 1.5); empty where nothing is given."""
    if text is None:
        return ()
    try:
        scales = tuple(float(part) for part in text.split(","))
    except ValueError:
        scales = ()
    if not scales or not all(0.1 <= scale <= 8 for scale in scales):
        raise UsageError(f"--scales: {text!r} are no factors; give such as 0.5,0.75,1.0,1.25")
    return scales
