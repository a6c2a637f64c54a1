"""Token sets on the disk: one safetensors file, written beside and renamed, checked when it is read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

from sightline.tasks.sequences.errors import DataError
from sightline.tasks.sequences.tokens import TokenSet

KEYS = ("values", "ends", "labels")


def default_cache() -> Path:
    """`sightline/sequences` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline" / "sequences"


def cached(path: Path, make: Callable[[], TokenSet]) -> TokenSet:
    """The set in a file; where there is none, or a damaged one, it is made and written.

    A cache that cannot be written is said, and the set used all the same.
    """
    if path.is_file():
        try:
            return load(path)
        except DataError as error:
            print(f"{error}; made again", flush=True)
    made = make()
    try:
        save(path, made)
    except OSError as error:
        print(f"{path}: could not be kept for the next time ({error.strerror or error})", flush=True)
    return made


def save(path: Path, tokens: TokenSet) -> None:
    """Write under a temporary name of this process and rename: readers never see half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file({key: np.ascontiguousarray(getattr(tokens, key)) for key in KEYS}, temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> TokenSet:
    """Read a set of one tower.

    Raises:
        DataError: it is damaged.
    """
    try:
        found = load_file(path)
        values, ends, labels = (found[key] for key in KEYS)
        if (values.dtype, ends.dtype, labels.dtype) != (np.uint8, np.int64, np.int64):
            raise ValueError("its numbers are of other kinds")
        return TokenSet(values, ends, labels)
    except (OSError, KeyError, ValueError, IndexError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: damaged ({' '.join(str(error).split())[:80]})") from error
