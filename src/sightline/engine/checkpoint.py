"""Checkpoints that are whole or not there: written beside, flushed, read back, and only then put in place.

`checkpoints/last` and `checkpoints/previous` hold everything that a run goes on from; `checkpoints/best` the weights of
the best evaluation. A manifest with the size and hash of every file tells a complete checkpoint from any other.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from sightline.engine.errors import SaveError
from sightline.engine.tree import State, plain, same

WEIGHTS, TENSORS, RECORD, MANIFEST = "model.safetensors", "state.safetensors", "state.json", "manifest.json"
LAST, PREVIOUS, BEST, NEW, OLD = "last", "previous", "best", ".new", ".old"


@dataclass(frozen=True)
class Saved:
    """A checkpoint read back: the weights to use, the tensors and the record to go on from, and where it was."""

    weights: State
    tensors: State
    record: dict[str, Any]
    path: Path


def write_weights(path: Path, model: nn.Module | Mapping[str, Tensor], card: Any) -> None:
    """Weights with the card of their model, under a temporary name, flushed, read back and renamed.

    Raises:
        SaveError: the disk is full or cannot be written; a file that was there before is intact.
    """
    state = model.state_dict() if isinstance(model, nn.Module) else dict(model)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_tensors(temporary, plain(state), card.to_metadata())
        temporary.replace(path)
        _flush_folder(path.parent)
    except (OSError, safetensors.SafetensorError) as error:
        raise SaveError(f"{path}: could not be written ({_reason(error)}); make room and start again") from error
    finally:
        temporary.unlink(missing_ok=True)


def find_weights(folder: Path) -> Path:
    """The best weights in a run folder, else the last ones; those of a folder in its `checkpoints`.

    Raises:
        ValueError: there are none.
    """
    for place in (".", *(f"checkpoints/{name}" for name in (BEST, LAST, PREVIOUS))):
        path = folder / place / WEIGHTS
        if path.is_file():
            return path
    raise ValueError(f"{folder}: no weights in it; give a file, or a run folder with checkpoints/best/{WEIGHTS}")


class Checkpoints:
    """The folder of a run's checkpoints.

    Args:
        folder: `checkpoints` in the run folder.
        report: hears of damaged checkpoints.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self.folder = folder
        self.report = report

    def save(self, weights: State, card: Any, tensors: State, record: dict[str, Any]) -> None:
        """Write a checkpoint as `last`; what was `last` becomes `previous`.

        Raises:
            SaveError: it could not be written; the last good checkpoint is intact.
        """
        new = self.folder / NEW
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            _write_tensors(new / WEIGHTS, plain(weights), card.to_metadata())
            _write_tensors(new / TENSORS, plain(tensors), {"format": "pt"})
            _write_text(new / RECORD, json.dumps(record))
            names = (WEIGHTS, TENSORS, RECORD)
            manifest = {name: {"bytes": (new / name).stat().st_size, "sha256": _digest(new / name)} for name in names}
            _write_text(new / MANIFEST, json.dumps({"step": record["step"], "files": manifest}, indent=1))
            _flush_folder(new)
        except (OSError, safetensors.SafetensorError) as error:
            shutil.rmtree(new, ignore_errors=True)
            raise SaveError(
                f"{self.folder}: the state after step {record['step']} could not be written ({_reason(error)}); the "
                f"last checkpoint is intact: make room and give the same command to resume"
            ) from error
        self._rotate(new)

    def _rotate(self, new: Path) -> None:
        """Put the new one in place; a kill between the renames leaves complete checkpoints under other names."""
        last, previous, old = (self.folder / name for name in (LAST, PREVIOUS, OLD))
        shutil.rmtree(old, ignore_errors=True)
        if previous.exists():
            previous.rename(old)
        if last.exists():
            last.rename(previous)
        new.rename(last)
        _flush_folder(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def exist(self) -> bool:
        """Whether there is a checkpoint, complete or damaged."""
        return any((self.folder / name).is_dir() for name in (LAST, PREVIOUS))

    def latest(self) -> Saved | None:
        """The newest complete checkpoint; damaged ones are reported and passed over."""
        found = []
        for name in (LAST, PREVIOUS, NEW, OLD):
            path = self.folder / name
            if (path / MANIFEST).is_file():
                found.append((_step(path), path))
            elif path.is_dir() and name in (LAST, PREVIOUS):
                self.report(f"{path}: incomplete, without {MANIFEST}; passed over")
        for _, path in sorted(found, key=lambda item: -item[0]):
            try:
                return read(path)
            except ValueError as error:
                self.report(f"{error}; passed over")
        return None


def read(path: Path) -> Saved:
    """A checkpoint, every file checked against the manifest.

    Raises:
        ValueError: a file is missing, short or altered.
    """
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        for name in (WEIGHTS, TENSORS, RECORD):
            size = (path / name).stat().st_size
            if size != files[name]["bytes"]:
                raise ValueError(f"{path / name}: damaged, {size} bytes instead of {files[name]['bytes']}")
            if _digest(path / name) != files[name]["sha256"]:
                raise ValueError(f"{path / name}: damaged, its bytes are not those that were written")
        record = json.loads((path / RECORD).read_text())
        weights, tensors = (safetensors.torch.load_file(path / name) for name in (WEIGHTS, TENSORS))
    except (OSError, KeyError, TypeError, safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: damaged checkpoint ({_reason(error)})") from error
    return Saved(weights, tensors, record, path)


def _step(path: Path) -> int:
    try:
        return int(json.loads((path / MANIFEST).read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _write_tensors(path: Path, tensors: State, metadata: dict[str, str]) -> None:
    path.touch()
    usual = path.stat().st_mode  # safetensors would leave it readable for its owner only
    safetensors.torch.save_file(tensors, path, metadata)
    path.chmod(usual)
    _flush(path)
    back = safetensors.torch.load_file(path)
    if back.keys() != tensors.keys() or not all(same(back[key], value) for key, value in tensors.items()):
        raise OSError(f"{path.name} reads back otherwise than it was written")


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _flush(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Make renames in a folder last; some systems cannot open folders, and need not."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    hasher = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def _reason(error: BaseException) -> str:
    strerror = getattr(error, "strerror", None)
    return strerror or " ".join(str(error).split())[:160] or type(error).__name__
