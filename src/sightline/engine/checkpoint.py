"""Checkpoints that are complete or absent: written to a new folder, flushed, read back, and only then renamed.

`checkpoints/last` and `checkpoints/previous` hold everything that a run resumes from, `checkpoints/best` the weights of
the best evaluation. A manifest with the size and hash of every file marks a complete checkpoint.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from sightline.engine.errors import SaveError
from sightline.engine.tree import State, plain, same
from sightline.models.weights.reader import WEIGHTS
from sightline.tasks.base import Card
from sightline.util.errors import FileError
from sightline.util.files import file_digest, flush_folder, reason, write_atomic, write_text

TENSORS, RECORD, MANIFEST = "state.safetensors", "state.json", "manifest.json"
LAST, PREVIOUS, BEST, NEW, OLD = "last", "previous", "best", ".new", ".old"


@dataclass(frozen=True)
class Saved:
    """A checkpoint: the weights to use, the tensors and the record to resume from, and its folder."""

    weights: State
    tensors: State
    record: dict[str, Any]  # JSON
    path: Path


def write_weights(path: Path, model: nn.Module | Mapping[str, Tensor], card: Card) -> None:
    """Write weights with the card of their model, and read them back.

    Raises:
        SaveError: the disk is full or cannot be written; the file before is intact.
    """
    state = plain(model.state_dict() if isinstance(model, nn.Module) else dict(model))
    try:
        write_atomic(path, lambda temporary: _write_tensors(temporary, state, card.to_metadata()))
    except (OSError, safetensors.SafetensorError) as error:
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
            for name, state, metadata in ((WEIGHTS, weights, card.to_metadata()), (TENSORS, tensors, {"format": "pt"})):
                write_atomic(new / name, partial(_write_tensors, tensors=plain(state), metadata=metadata))
            write_text(new / RECORD, json.dumps(record))
            names = (WEIGHTS, TENSORS, RECORD)
            manifest = {
                name: {"bytes": (new / name).stat().st_size, "sha256": file_digest(new / name)} for name in names
            }
            write_text(new / MANIFEST, json.dumps({"step": record["step"], "files": manifest}, indent=1))
        except (OSError, safetensors.SafetensorError) as error:
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
        if previous.exists():
            previous.rename(old)
        if last.exists():
            last.rename(previous)
        new.rename(last)
        flush_folder(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def exist(self) -> bool:
        """Whether there is a checkpoint, complete or damaged."""
        return any((self.folder / name).is_dir() for name in (LAST, PREVIOUS))

    def latest(self) -> Saved | None:
        """The newest complete checkpoint; damaged ones are reported and skipped."""
        found = []
        for name in (LAST, PREVIOUS, NEW, OLD):
            path = self.folder / name
            if (path / MANIFEST).is_file():
                found.append((_step(path), path))
            elif path.is_dir() and name in (LAST, PREVIOUS):
                self.report(f"{path}: incomplete, without {MANIFEST}; skipped")
        for _, path in sorted(found, key=lambda item: -item[0]):
            try:
                return read(path)
            except FileError as error:
                self.report(f"{error}; skipped")
        return None


def read(path: Path) -> Saved:
    """Read a checkpoint and check every file against the manifest.

    Raises:
        FileError: a file is missing, short or altered.
    """
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        for name in (WEIGHTS, TENSORS, RECORD):
            size = (path / name).stat().st_size
            if size != files[name]["bytes"]:
                raise FileError(f"{path / name}: damaged, {size} bytes instead of {files[name]['bytes']}")
            if file_digest(path / name) != files[name]["sha256"]:
                raise FileError(f"{path / name}: damaged, its bytes are not those that were written")
        record = json.loads((path / RECORD).read_text())
        weights, tensors = (safetensors.torch.load_file(path / name) for name in (WEIGHTS, TENSORS))
    except (OSError, KeyError, TypeError, safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise FileError(f"{path}: damaged checkpoint ({reason(error)})") from error
    return Saved(weights, tensors, record, path)


def _step(path: Path) -> int:
    try:
        return int(json.loads((path / MANIFEST).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _write_tensors(path: Path, tensors: State, metadata: dict[str, str]) -> None:
    safetensors.torch.save_file(tensors, path, metadata)
    back = safetensors.torch.load_file(path)
    if back.keys() != tensors.keys() or not all(same(back[key], value) for key, value in tensors.items()):
        raise OSError(f"{path.name} is not read back as it was written")
