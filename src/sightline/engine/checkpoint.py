"""Checkpoints that are complete or absent: written to a new folder, flushed, read back, and only then renamed.

`checkpoints/last` and `checkpoints/previous` hold everything that a run resumes from, `checkpoints/best` the weights of
the best evaluation. A manifest with the size and hash of every file marks a complete checkpoint.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from pydantic import JsonValue, TypeAdapter
from torch import Tensor, nn

from sightline.engine.records import Count
from sightline.hub import write_tensors
from sightline.models.weights.reader import WEIGHTS
from sightline.tasks.base import Card
from sightline.util.documents import OBJECT, read_json
from sightline.util.errors import FileError, RunError
from sightline.util.files import file_digest, flush_folder, reason, write_text

TENSORS, RECORD, MANIFEST = "state.safetensors", "state.json", "manifest.json"
LAST, PREVIOUS, BEST, NEW, OLD = "last", "previous", "best", ".new", ".old"
State = dict[str, Tensor]


class SaveError(RunError):
    """A checkpoint could not be written."""


@dataclass(frozen=True)
class Entry:
    """A file in a manifest."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of a checkpoint, and the step that it was made after."""

    step: Count
    files: dict[str, Entry]


@dataclass(frozen=True)
class Saved:
    """A checkpoint: the weights to use, the tensors and the record to resume from, and its folder."""

    weights: State
    tensors: State
    record: dict[str, JsonValue]
    path: Path


def write_weights(path: Path, model: nn.Module | Mapping[str, Tensor], card: Card) -> None:
    """Write weights with the card of their model, and read them back.

    Raises:
        SaveError: the disk is full or cannot be written; the file before is intact.
    """
    try:
        write_tensors(path, model.state_dict() if isinstance(model, nn.Module) else model, card.to_metadata())
    except OSError as error:
        raise SaveError(f"{path}: could not be written ({reason(error)}); make room and start again") from error


class Checkpoints:
    """The folder of a run's checkpoints.

    Args:
        folder: `checkpoints` in the run folder.
        report: called with a line about each damaged checkpoint.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self.folder = folder
        self.report = report

    def save(self, weights: State, card: Card, tensors: State, record: Mapping[str, object]) -> None:
        """Write a checkpoint as `last`; the one before becomes `previous`.

        Raises:
            SaveError: it could not be written; the last good checkpoint is intact.
        """
        new = self.folder / NEW
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            write_tensors(new / WEIGHTS, weights, card.to_metadata())
            write_tensors(new / TENSORS, tensors, {"format": "pt"})
            write_text(new / RECORD, json.dumps(record))
            files = {name: _entry(new / name) for name in (WEIGHTS, TENSORS, RECORD)}
            write_text(new / MANIFEST, json.dumps({"step": record["step"], "files": files}, indent=1, default=asdict))
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise SaveError(
                f"{self.folder}: the state after step {record['step']} could not be written ({reason(error)}); the "
                f"last checkpoint is intact: make room and run the same command to resume"
            ) from error
        self._rotate(new)

    def _rotate(self, new: Path) -> None:
        """Rename the new checkpoint; a kill between renames leaves complete checkpoints under other names."""
        last, previous, old = (self.folder / name for name in (LAST, PREVIOUS, OLD))
        shutil.rmtree(old, ignore_errors=True)
        if last.exists():
            if previous.exists():
                previous.rename(old)
            last.rename(previous)
        new.rename(last)
        flush_folder(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def settle(self, saved: Saved) -> None:
        """Make the checkpoint that a run resumes from `last`, if a kill came between its last byte and its name."""
        if saved.path.name == NEW:
            self._rotate(saved.path)

    def exist(self) -> bool:
        """Whether there is a checkpoint, complete or damaged."""
        return any((self.folder / name).is_dir() for name in (LAST, PREVIOUS))

    def latest(self) -> Saved | None:
        """The newest complete checkpoint; damaged ones are reported and skipped."""
        found = []
        for name in (NEW, LAST, PREVIOUS, OLD):  # newest first, as two may have been made after the same step
            path = self.folder / name
            try:
                found.append((read_json(path / MANIFEST, TypeAdapter(Manifest)), path))
            except FileError as error:
                if path.is_dir() and name in (LAST, PREVIOUS):
                    self.report(f"{error}; skipped")
        for manifest, path in sorted(found, key=lambda item: -item[0].step):
            try:
                return read(path, manifest.files)
            except FileError as error:
                self.report(f"{error}; skipped")
        return None


def read(path: Path, files: Mapping[str, Entry]) -> Saved:
    """Read a checkpoint and check every file against its manifest.

    Raises:
        FileError: a file is missing, short or altered.
    """
    try:
        for name in (WEIGHTS, TENSORS, RECORD):
            if files.get(name) != _entry(path / name):
                raise FileError(f"{path / name}: damaged, its bytes are not those that were written")
        weights, tensors = (safetensors.torch.load_file(path / name) for name in (WEIGHTS, TENSORS))
    except (OSError, safetensors.SafetensorError) as error:
        raise FileError(f"{path}: damaged checkpoint ({reason(error)})") from error
    return Saved(weights, tensors, read_json(path / RECORD, OBJECT), path)


def _entry(path: Path) -> Entry:
    return Entry(path.stat().st_size, file_digest(path))
