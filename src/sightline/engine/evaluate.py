"""Evaluate any model: the task of its weights decides what is scored."""

from pathlib import Path
from typing import Any, get_args

from sightline.engine.records import CONFIG, read_config
from sightline.engine.settings import TASK, configure
from sightline.hub import load
from sightline.tasks.base import EvalOptions, Loaded, OnError, Progress, Scores
from sightline.tasks.registry import TASKS
from sightline.util.device import AUTOCAST, choose_device
from sightline.util.errors import InputError
from sightline.util.schema import MOST_WORKERS, both_sides, check_choice, check_text, check_whole


def evaluate(
    loaded: Loaded | str | Path | None,
    data: str | Path | None = None,
    *,
    split: str | None = None,
    img_size: int | tuple[int, int] | None = None,
    labels: str = "names",
    limit: int | None = None,
    batch_size: int = 64,
    workers: int = 2,
    device: str = "auto",
    precision: str = "no",
    on_error: OnError = "stop",
    slide: bool = False,
    scales: tuple[float, ...] = (),
    flip: bool = False,
    progress: Progress | None = None,
) -> Scores:
    """Evaluate a model.

    Args:
        loaded: what `sightline.load` opened, or a path that it opens; None for the model in the package.
        data: folder, tar file, shards or hfds/NAME; by default the data of the run that the weights are from.
        split: by default val, validation or test.
        img_size: height and width; by default those of training.
        labels: names (classes by name), order (as they come), v2 (folders are indices of outputs), real (ImageNet's
            ReaL labels) or a JSON file of label sets.
        limit: evaluate the first images of every class only, this many.
        batch_size, workers: images per batch, and processes that decode them.
        device: auto, cpu, cuda, mps or cuda:1; the model is moved there.
        precision: "no", "fp16" or "bf16".
        on_error: "stop" at an unreadable image, or "skip" it.
        slide, scales, flip: for segmentation: windows, several scales, mirror images.
        progress: opens a progress bar for (total, title).

    Returns:
        Iterable as `(name, value)`, with `per_class` rows and the `confusion` matrix.

    Raises:
        InputError: an option cannot be used.
        FileError: the data cannot be used.

    Example:
        >>> scores = sightline.evaluate(sightline.load("runs/quick"), limit=1, workers=0)
        >>> [name for name, value in scores]
        ['top1', 'top5', 'balanced', 'ece', 'loss']
        >>> [row["class"] for row in scores.per_class]
        ['blue', 'green', 'red']
    """
    size = both_sides("img_size", img_size)
    options = EvalOptions(
        choose_device(device), split, limit, size, labels, batch_size, workers, precision, on_error, slide,
        scales, flip, progress,
    )  # fmt: skip
    loaded = loaded if isinstance(loaded, Loaded) else load(loaded)
    found = evaluate_label_sets(loaded, None if data is None else str(data), options)
    return found.get("real", found["usual"])


def evaluate_label_sets(loaded: Loaded, data: str | None, options: EvalOptions) -> dict[str, Scores]:
    """Scores by label set: "usual" always, and "real" if `options.labels` asks for a second set, in one pass."""
    check_whole("batch_size", options.batch_size, 1)
    check_whole("workers", options.workers, 0, MOST_WORKERS)
    check_whole("limit", 1 if options.limit is None else options.limit, 1)
    check_choice("precision", options.precision, ("no", *AUTOCAST))
    check_choice("on_error", options.on_error, get_args(OnError))
    check_text("labels", options.labels)
    check_text("split", "val" if options.split is None else options.split)
    spec = TASKS[loaded.task]
    if given := [name for name in spec.without if getattr(options, name) != getattr(EvalOptions, name)]:
        raise InputError(f"{', '.join(given)}: not for {loaded.task}; leave it out")
    return spec.evaluate(loaded, data, run_data(loaded.path, loaded.task), options)


def run_data(path: Path, task: str) -> object | None:
    """The section `data` of the run that a folder or file of weights belongs to; None if there is no such run."""
    folders = (path, path.parent, *path.resolve().parents[2:3])  # RUN/checkpoints/best/model.safetensors
    folder = next((folder for folder in folders if (folder / CONFIG).is_file()), None)
    if folder is None:
        return None
    recipe = read_config(folder)
    spec = TASKS.get(recipe[TASK])
    if recipe[TASK] != task and (spec is None or spec.makes != task):
        raise InputError(
            f"{folder / CONFIG}: of {recipe[TASK]}, but the weights are of {task}; give the file of weights"
        )
    section: Any = configure({TASK: recipe[TASK], "data": recipe.get("data", {})}).data
    return None if recipe[TASK] != task and section.path is None else section
