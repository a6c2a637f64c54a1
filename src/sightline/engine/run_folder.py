"""The folder of a run: its name, its lock, and the files that record the run."""

import errno
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from sightline.engine.records import (
    CLASSES,
    CONFIG,
    CONFUSION,
    DONE,
    METRICS,
    PER_CLASS,
    VERSIONS,
    Row,
    read_config,
    read_rows,
)  # fmt: skip
from sightline.engine.settings import TASK, to_dict, to_yaml
from sightline.tasks.base import Scores
from sightline.tasks.config import RunConfig
from sightline.util.errors import InputError
from sightline.util.files import reason, write_text

LOCK = ".lock"
# Keys that may change when a run resumes; of the section `run` all but the seed.
FREE = {"data.path", "data.workers", "batch.eval_size", "model.compile", "model.compile_mode"}


class RunFolder:
    """An open and locked run folder; `close` unlocks it, and removes it if nothing was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
        except OSError as error:
            why = reason(error).lower()
            raise InputError(f"run.folder: nothing can be written to {path} ({why}); give another folder") from error

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def describe(self, config: RunConfig, classes: tuple[str, ...], device: str) -> None:
        """Write the resolved configuration, the versions of everything, and the names of the classes."""
        write_text(self.path / CONFIG, to_yaml(config))
        write_text(self.path / VERSIONS, json.dumps(versions(device), indent=1) + "\n")
        write_text(self.path / CLASSES, json.dumps(list(classes), ensure_ascii=False, indent=1) + "\n")

    def log(self, values: Mapping[str, object]) -> None:
        """Append a line to the metrics and flush it to the disk."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewind(self, epochs: int, step: int) -> None:
        """Keep one line of metrics per epoch, up to `epochs` and `step`; drop what came later or is truncated."""
        rows = (row for row in read_rows(self.path) if _up_to(row, "epoch", epochs) and _up_to(row, "step", step))
        kept = {row["epoch"]: row for row in rows}
        write_text(self.path / METRICS, "".join(f"{json.dumps(row)}\n" for row in kept.values()))

    def keep_evaluation(self, evaluation: Scores, classes: tuple[str, ...]) -> None:
        """Write the best evaluation: scores by class and the confusion matrix, if any (one row per true class)."""
        if evaluation.confusion is not None:
            counts = evaluation.confusion.tolist()
            write_text(self.path / CONFUSION, json.dumps({"classes": list(classes), "counts": counts}) + "\n")
        write_text(self.path / PER_CLASS, json.dumps(evaluation.per_class, indent=1) + "\n")

    def finish(self, values: Mapping[str, object]) -> list[Row]:
        """Mark the run as complete; returns the metrics."""
        write_text(self.path / DONE, json.dumps(values, indent=1) + "\n")
        return read_rows(self.path)

    def close(self) -> None:
        if all(item.name == LOCK for item in self.path.iterdir()):
            (self.path / LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                for folder in self._made:
                    folder.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _up_to(row: Row, key: str, limit: int) -> bool:
    return (row.get(key) or 0) <= limit


def choose(config: RunConfig, name: str) -> tuple[Path, bool]:
    """The folder for a run, and whether it holds an unfinished run of the same configuration to resume.

    Raises:
        InputError: the requested folder holds another run, or no run if it must be resumed.
    """
    resume = config.run.resume
    if config.run.folder is not None:
        path = Path(config.run.folder)
        if not config.run.folder.strip():
            raise InputError("run.folder: the path is empty; give a folder, or leave it out")
        if path.exists() and not path.is_dir():
            raise InputError(f"run.folder: {path} is not a folder")
        started = (path / CONFIG).is_file()
        if resume == "must" and not started:
            raise InputError(f"run.folder: {path} holds no run to resume")
        empty = not (path / "checkpoints").exists()  # ended before the first checkpoint
        if not started and not empty:
            raise InputError(
                f"run.folder: {path} has checkpoints but no {CONFIG}; restore it, or choose another folder"
            )
        if not started or (empty and resume == "auto" and differences(path, config)):
            return path, False
        _check_resumable(path, config)
        return path, True
    for number in count(1):
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists() or all(item.name == LOCK for item in path.iterdir()):  # unused, as after a kill
            if resume == "must":
                raise InputError("run.resume: there is no unfinished run of this configuration under runs")
            return path, False
        unfinished = (path / CONFIG).is_file() and not (path / DONE).exists()
        if unfinished and resume != "never" and not differences(path, config):
            break
    return path, True


def _check_resumable(path: Path, config: RunConfig) -> None:
    if config.run.resume == "never":
        raise InputError(f"run.folder: {path} holds a run already; choose another folder, or leave run.resume out")
    if (path / DONE).exists():
        raise InputError(f"run.folder: the run in {path} is complete; choose another folder")
    if differing := differences(path, config):
        raise InputError(
            f"run.folder: {path} was started with another {', '.join(differing[:4])}; "
            f"give the same configuration or another folder"
        )


def differences(path: Path, config: RunConfig) -> list[str]:
    """The keys in which a configuration differs from that of a run folder."""
    try:
        stored = read_config(path)
    except (ValueError, OSError):
        return ["configuration, which cannot be read"]
    now = to_dict(config)
    if stored[TASK] != now.pop(TASK):
        return [TASK]
    keys = [(s, k) for s, values in now.items() for k in values if s != "run" or k == "seed"]
    return [f"{s}.{k}" for s, k in keys if f"{s}.{k}" not in FREE and stored.get(s, {}).get(k) != now[s][k]]


def versions(device: str) -> dict[str, str | None]:
    """Provenance of a run: versions, machine, commit and command."""
    import timm
    import torch

    from sightline.util.provenance import VERSION, source_commit

    return {
        "sightline": VERSION,
        "commit": source_commit()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "device": device,
        "platform": platform.platform(),
        "command": shlex.join(["sightline", *sys.argv[1:]]),
    }


def _lock(path: Path) -> int | None:
    """Lock the folder; the system unlocks it when the process ends, however it ends.

    A POSIX record lock and not `filelock`, whose flock is inherited by forked loader workers: these can outlive a
    killed run by seconds and would block its resumption.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = os.open(path / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
            return handle
        os.close(handle)
        raise InputError(f"run.folder: another process is training in {path}; wait for it or choose another") from error
    return handle
