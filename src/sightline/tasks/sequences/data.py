"""The splits of a task: generated, cached, or read from the files that a user has."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sightline.tasks.sequences import images, listops, pathfinder, texts
from sightline.tasks.sequences.config import Data
from sightline.tasks.sequences.store import cached, default_cache
from sightline.tasks.sequences.tokens import TokenSet
from sightline.util.errors import FileError

Note = Callable[[str, int, int], None]
PAUSE = 5.0  # seconds between progress lines
SPLITS = ("train", "val", "test")
VERSION = 1  # of the generators; changed whenever the generated data changes


@dataclass(frozen=True)
class SequenceTask:
    """A task.

    Args:
        classes: names, in the order of the labels.
        tokens: vocabulary size.
        length: where sequences are cut, as published.
        sizes: examples of the three splits that are generated.
        files: what `data.path` must be.
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
    "text": SequenceTask(texts.REVIEWS, 256, 4000, "the folder aclImdb"),
    "retrieval": SequenceTask(texts.PAIRS, 256, 4000, "a folder with new_aan_pairs.train.tsv, .eval.tsv and .test.tsv"),
    "image": SequenceTask(
        images.CLASSES, 256, 1024, "the folder cifar-10-batches-bin, or folders train/ and test/ of images by class"
    ),
    "pathfinder": SequenceTask(
        pathfinder.CLASSES, 256, 1024, "a folder such as pathfinder32/curv_contour_length_14",
        (160_000, 20_000, 20_000),
    ),
}  # fmt: skip


def open_splits(config: Data, path: str | None, note: Note, splits: tuple[str, ...] = SPLITS) -> dict[str, TokenSet]:
    """The requested splits, by name.

    Args:
        path: files of the user; without it the data are generated, where they can be.
        note: reports progress.

    Raises:
        FileError: there is no such data, or it is damaged.
    """
    task = SEQUENCE_TASKS[config.name]
    if path is not None and not path.strip():
        raise FileError(f"--data: the path is empty; {config.name} takes {task.files}")
    if path is None:
        if task.sizes is None:
            raise FileError(f"{config.name} is not generated; give --data PATH: {task.files}")
        made = _generated(config, task, note, splits)
    elif Path(path).is_dir():
        made = READERS[config.name](Path(path), config, config.length or task.length, note, splits)
    else:
        raise FileError(f"--data: {path} is not a folder; {config.name} takes {task.files}")
    for split, tokens in made.items():
        if not len(tokens):
            raise FileError(f"{path}: no examples in {split}; {config.name} takes {task.files}")
    return made


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
        print(f"{what}: {done:,} of {total:,}{ending}", flush=True)


def cut(config: Data, tokens: TokenSet) -> int:
    """Sequences that are cut, when they are read or batched."""
    return tokens.cut + int((tokens.lengths > (config.length or SEQUENCE_TASKS[config.name].length)).sum())


def _generated(config: Data, task: SequenceTask, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    assert task.sizes is not None
    sizes = [given or usual for given, usual in zip((config.train, config.val, config.test), task.sizes, strict=True)]
    generate = {"listops": listops.generate, "pathfinder": pathfinder.generate}[config.name]
    name = f"{config.name}-{VERSION}-{config.seed}-{'-'.join(map(str, sizes))}.safetensors"
    folder = Path(config.cache) if config.cache else default_cache()
    tell = partial(note, f"{config.name}, examples generated")
    check = partial(_check, task, sum(sizes))
    whole = cached(folder / name, lambda: generate(sum(sizes), config.seed, tell), check)
    ends = np.cumsum([0, *sizes]).tolist()
    found = {split: whole.part(a, b) for split, a, b in zip(SPLITS, ends[:-1], ends[1:], strict=True)}
    return {split: found[split] for split in splits}


def _check(task: SequenceTask, count: int, tokens: TokenSet) -> None:
    """Reject a set that is of other sizes, or has tokens or labels that the task does not have."""
    if len(tokens) != count:
        raise FileError(f"{len(tokens):,} examples instead of {count:,}")
    if len(tokens.values) and int(tokens.values.max()) >= task.tokens:
        raise FileError(f"token {int(tokens.values.max())} is not one of 0 to {task.tokens - 1}")
    if wrong := set(np.unique(tokens.labels).tolist()) - set(range(len(task.classes))):
        raise FileError(f"label {min(wrong)} is not one of 0 to {len(task.classes) - 1}")


def _listops(folder: Path, config: Data, length: int, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    return {split: listops.read(_file(folder, f"basic_{split}.tsv"), length) for split in splits}


def _text(folder: Path, config: Data, length: int, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    """As published, the test reviews are those of validation too."""
    return {split: texts.read_imdb(folder, "train" if split == "train" else "test", length) for split in splits}


def _retrieval(folder: Path, config: Data, length: int, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    names = {split: f"new_aan_pairs.{'eval' if split == 'val' else split}.tsv" for split in splits}
    return {split: texts.read_pairs(_file(folder, name), length) for split, name in names.items()}


def _image(folder: Path, config: Data, length: int, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    """As published, the last tenth of the training images is for validation."""
    if (folder / "data_batch_1").is_file():
        raise FileError(f"{folder}: CIFAR-10's python version is pickled code; give its binary version (.bin files)")
    folders = (folder / "train").is_dir()
    train = images.read_folder(folder / "train", images.CLASSES)[0] if folders else images.read_cifar(folder, "train")
    if folders:  # classes come one after the other there
        train = train.take(np.random.default_rng(config.seed).permutation(len(train)))
    edge = len(train) - len(train) // 10
    found = {"train": train.part(0, edge), "val": train.part(edge, len(train))}
    if "test" in splits:
        found["test"] = (
            images.read_folder(folder / "test", images.CLASSES)[0] if folders else images.read_cifar(folder, "test")
        )
    return {split: found[split] for split in splits}


def _pathfinder(folder: Path, config: Data, length: int, note: Note, splits: tuple[str, ...]) -> dict[str, TokenSet]:
    """Eight tenths, one and one of the published images, after a shuffle by the seed."""
    whole, empty = pathfinder.read(folder, partial(note, "pathfinder, parts read"))
    if empty:
        print(f"{folder}: {empty:,} empty images left out", flush=True)
    whole = whole.take(np.random.default_rng(config.seed).permutation(len(whole)))
    ends = (0, len(whole) * 8 // 10, len(whole) * 9 // 10, len(whole))
    found = {split: whole.part(a, b) for split, a, b in zip(SPLITS, ends[:-1], ends[1:], strict=True)}
    return {split: found[split] for split in splits}


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise FileError(f"{folder}: {name} is not there; give the folder of the files as published")
    return folder / name


READERS = {"listops": _listops, "text": _text, "retrieval": _retrieval, "image": _image, "pathfinder": _pathfinder}
