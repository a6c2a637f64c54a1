"""The splits of a task: generated and cached, or read from the files that a user has."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from sightline.tasks.sequences import files, listops, pathfinder
from sightline.tasks.sequences.config import Data
from sightline.tasks.sequences.tokens import Note, TokenSet, cached, quiet
from sightline.util.errors import FileError
from sightline.util.files import reason
from sightline.util.text import say

PAUSE = 5.0  # seconds between progress lines
SPLITS = ("train", "val", "test")
VERSIONS = {"listops": 1, "pathfinder": 2}  # of the generators; changed whenever the generated data changes


@dataclass(frozen=True)
class SequenceTask:
    """A task.

    Args:
        classes: names, in the order of the labels.
        tokens: vocabulary size.
        length: where sequences are cut, as published.
        files: what `data.path` must be.
        sizes: examples of the three splits that are generated.
    """

    classes: tuple[str, ...]
    tokens: int
    length: int
    files: str
    sizes: tuple[int, int, int] | None = None


SEQUENCE_TASKS: dict[str, SequenceTask] = {
    "listops": SequenceTask(
        tuple(map(str, range(10))), 15, 2000, "a folder with basic_train.tsv, basic_val.tsv and basic_test.tsv",
        (96_000, 2_000, 2_000),
    ),
    "text": SequenceTask(files.REVIEWS, 256, 4000, "the folder aclImdb"),
    "retrieval": SequenceTask(
        ("unrelated", "related"), 256, 4000, "a folder with new_aan_pairs.train.tsv, .eval.tsv and .test.tsv"
    ),
    "image": SequenceTask(
        files.CIFAR, 256, 1024, "the folder cifar-10-batches-bin, or folders train/ and test/ of images by class"
    ),
    "pathfinder": SequenceTask(
        ("unconnected", "connected"), 256, 1024, "a folder such as pathfinder32/curv_contour_length_14",
        (160_000, 20_000, 20_000),
    ),
}  # fmt: skip


def open_splits(config: Data, note: Note = quiet, splits: tuple[str, ...] = SPLITS) -> dict[str, TokenSet]:
    """The requested splits, by name: those in the folder `config.path`, or else generated.

    Raises:
        FileError: there is no such data, or it is damaged.
    """
    task, path = SEQUENCE_TASKS[config.name], config.path
    if path is None:
        return _generated(config, task, note, splits)
    if not os.path.isdir(path):
        raise FileError(f"data.path: {path!r} is not a folder; {config.name} takes {task.files}")
    try:
        found = _read(Path(path), config, note, splits)
    except OSError as error:
        raise FileError(f"{error.filename or path}: {reason(error)}; {config.name} takes {task.files}") from error
    for split, tokens in found.items():
        if not len(tokens):
            raise FileError(f"{path}: no examples in {split}; {config.name} takes {task.files}")
    return found


def open_levels(config: Data, note: Note, last: TokenSet) -> list[TokenSet]:
    """The training sets of a curriculum, or the only one; `last` is the one of `config` itself."""
    usual, few = config.dashes or pathfinder.DASHES, replace(config, val=2, test=2)
    return [
        last if dashes == usual else open_splits(replace(few, dashes=dashes), note, ("train",))["train"]
        for dashes in config.curriculum or (usual,)
    ]


class ProgressPrinter:
    """Prints the progress of slow work: a line every few seconds with an estimate, and one at the end."""

    def __init__(self) -> None:
        self.start = self.said = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self.said < PAUSE:
            return
        self.said = now
        left = (now - self.start) * (total - done) / max(done, 1)
        ending = f", {left:.0f} s left" if done < total else f" in {now - self.start:.0f} s"
        say(f"{what}: {done:,} of {total:,}{ending}")


def cut(config: Data, tokens: TokenSet) -> int:
    """Sequences that are cut, when they are read or batched."""
    return tokens.cut + int((tokens.lengths > (config.length or SEQUENCE_TASKS[config.name].length)).sum())


def _generated(config: Data, task: SequenceTask, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    if task.sizes is None:
        raise FileError(f"{config.name} is not generated; give data.path: {task.files}")
    sizes = [given or usual for given, usual in zip((config.train, config.val, config.test), task.sizes, strict=True)]
    level, generate = "", cast(Callable[..., TokenSet], listops.generate)
    if config.name == "pathfinder":
        dashes, distractors = config.dashes or pathfinder.DASHES, config.distractors
        level = f"-{dashes}" + ("" if distractors is None else f"-{distractors}")
        generate = partial(pathfinder.generate, dashes=dashes, distractors=distractors)
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(config.cache) if config.cache else user / "sightline" / "sequences"
    path = (
        folder / f"{config.name}-{VERSIONS[config.name]}{level}-{config.seed}-{'-'.join(map(str, sizes))}.safetensors"
    )
    count = sum(sizes)
    whole = cached(path, lambda: generate(count, config.seed, note), count, task.tokens, len(task.classes))
    return _divide(whole, sizes, splits)


def _divide(whole: TokenSet, sizes: list[int], splits: tuple[str, ...]) -> dict[str, TokenSet]:
    """The splits that are asked for, of a set that has them one after the other."""
    ends = np.cumsum([0, *sizes]).tolist()
    return {
        split: whole.part(start, stop)
        for split, start, stop in zip(SPLITS, ends[:-1], ends[1:], strict=False)
        if split in splits
    }


def _read(folder: Path, config: Data, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    length = config.length or SEQUENCE_TASKS[config.name].length
    if config.name == "listops":
        return {split: files.read_listops(folder / f"basic_{split}.tsv", length) for split in splits}
    if config.name == "text":  # as published, the test reviews are those of validation too
        return {split: files.read_imdb(folder / ("train" if split == "train" else "test"), length) for split in splits}
    if config.name == "retrieval":
        names = {split: f"new_aan_pairs.{'eval' if split == 'val' else split}.tsv" for split in splits}
        return {split: files.read_pairs(folder / name, length) for split, name in names.items()}
    if config.name == "image":
        return _read_images(folder, config.seed, splits)
    whole, empty = files.read_pathfinder(folder, note)
    if empty:
        say(f"{folder}: {empty:,} empty images left out")
    count = len(whole)
    train, val = count * 8 // 10, count * 9 // 10 - count * 8 // 10
    return _divide(whole.shuffled(config.seed), [train, val, count - train - val], splits)


def _read_images(folder: Path, seed: int, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    """As published, the last tenth of the training images is for validation."""
    found: dict[str, TokenSet] = {}
    folders = (folder / "train").is_dir()
    if set(splits) & {"train", "val"}:
        # Classes come one after the other in folders.
        train = files.read_folder(folder / "train").shuffled(seed) if folders else files.read_cifar(folder, "train")
        found = _divide(train, [len(train) - len(train) // 10, len(train) // 10], splits)
    if "test" in splits:
        found["test"] = files.read_folder(folder / "test") if folders else files.read_cifar(folder, "test")
    return found
