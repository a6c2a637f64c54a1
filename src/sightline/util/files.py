"""Files that are complete or absent: written under a temporary name in the same folder, flushed, and renamed."""

import contextlib
import glob
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from sightline.util.errors import InputError, shown

MOST_SHOWN = 160  # characters of an error from elsewhere
STALE = 3600.0  # seconds after which a temporary file belongs to a process that was killed


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Create or replace a file. If anything fails, what was there before is intact.

    Args:
        write: writes to the path it is given, which has the same suffix. File mode follows the umask.

    Example:
        >>> write_atomic(folder / "curves.png", figure.savefig)  # doctest: +SKIP
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp{path.suffix}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # some writers replace the file with one that only its owner can read
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Create or replace a text file in UTF-8; line ends are written as given."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))  # names of files may have bytes that are not UTF-8


def write_json(path: Path, value: object) -> None:
    """Create or replace a JSON file; see `jsonable`."""
    write_text(path, json.dumps(jsonable(value), indent=1) + "\n")


def jsonable(value: object) -> object:
    """A value as JSON can hold it: NaN and infinities become null, tuples lists, keys strings."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_bytes(path: Path, data: bytes) -> None:
    """Create or replace a binary file."""
    write_atomic(path, lambda temporary: temporary.write_bytes(data))


def check_path(path: object, name: str, expected: str) -> None:
    """Reject an argument that is no path, or an empty one, which would be the current folder.

    Raises:
        InputError: names the argument and what is `expected`.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{name}: expected the path of {expected}; got {shown(path)}")
    if not str(path).strip():
        raise InputError(f"{name}: the path is empty; give {expected}")


def check_writable(folder: str | Path, option: str) -> None:
    """Create the folder that an option names, and reject one that cannot be written before any work is done.

    Raises:
        InputError: the path is empty, or nothing can be written there.
    """
    if not str(folder).strip():
        raise InputError(f"{option}: the path is empty; give a folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = reason(error).lower()
        raise InputError(f"{option}: cannot write to {folder} ({why}); give another folder") from error


def write_result(path: Path, write: Callable[[Path], object], option: str = "--out") -> None:
    """`write_atomic` for a file in the folder that an option names.

    Raises:
        InputError: no space or no permission.
    """
    try:
        write_atomic(path, write)
    except OSError as error:
        why = reason(error).lower()
        raise InputError(f"{path}: cannot be written ({why}); free some space, or give another {option}") from error


def flush_folder(path: Path) -> None:
    """Force renames in a folder to the disk, on systems that can open folders."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file to read bytes.

    Raises:
        OSError: there is none, or it is something else, such as a pipe or a device, which could block forever.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise IsADirectoryError("a folder") if stat.S_ISDIR(mode) else OSError("not a regular file")
    return os.fdopen(handle, "rb")


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    hasher = sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def reason(error: BaseException) -> str:
    """Why an operation failed, in one line: the system's message if there is one."""
    strerror = getattr(error, "strerror", None)
    text = " ".join(str(error).split())
    if len(text) > MOST_SHOWN:
        text = f"{text[:MOST_SHOWN].rpartition(' ')[0] or text[:MOST_SHOWN]} ..."
    return strerror or text or type(error).__name__


def remove_stale(path: Path) -> None:
    """Remove temporary files and folders that killed processes left next to `path`."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp*"):
        with contextlib.suppress(OSError):  # another process may do the same
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
