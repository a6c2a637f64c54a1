"""Token sets on the disk: one safetensors file, written atomically, checked when it is read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes

from sightline.tasks.sequences.tokens import TokenSet
from sightline.util.errors import FileError
from sightline.util.files import write_bytes

KEYS = ("values", "ends", "labels")
Check = Callable[[TokenSet], None]


def default_cache() -> Path:
    """`sightline/sequences` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline" / "sequences"


def cached(path: Path, make: Callable[[], TokenSet], check: Check | None = None) -> TokenSet:
    """The set in a file; if it is missing or damaged, it is made and written.

    A cache that cannot be written gives a message, and the set is used all the same.

    Args:
        check: raises ValueError where a set that was read is not what `make` would give.
    """
    if path.is_file():
        try:
            return load(path, check)
        except FileError as error:
            print(f"{error}; made again", flush=True)
    made = make()
    try:
        save(path, made)
    except OSError as error:
        print(f"{path}: could not be kept for the next time ({error.strerror or error})", flush=True)
    return made


def save(path: Path, tokens: TokenSet) -> None:
    """Write a set; readers never find half a file."""
    write_bytes(path, to_bytes({key: np.ascontiguousarray(getattr(tokens, key)) for key in KEYS}))


def load(path: Path, check: Check | None = None) -> TokenSet:
    """Read a set of one tower.

    Raises:
        FileError: it is damaged.
    """
    try:
        found = load_file(path)
        values, ends, labels = (found[key] for key in KEYS)
        if (values.dtype, ends.dtype, labels.dtype) != (np.uint8, np.int64, np.int64):
            raise ValueError("unexpected dtypes")
        if {values.ndim, ends.ndim, labels.ndim} != {1}:
            raise ValueError("its arrays are of other shapes")
        tokens = TokenSet(values, ends, labels)
        if check is not None:
            check(tokens)
        return tokens
    except (OSError, KeyError, TypeError, ValueError, IndexError, safetensors.SafetensorError) as error:
        raise FileError(f"{path}: damaged ({' '.join(str(error).split())[:80]})") from error
