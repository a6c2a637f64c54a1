"""The embedded dataset: 10,000 training and 2,000 test images of Fashion-MNIST in ten classes (MIT, Zalando SE).

It is kept compressed in the package, because tar files of small images are mostly padding, and unpacked once to plain
tar files of PNG images, which the ordinary loader reads. `tools/make_embedded.py` makes it.
"""

import lzma
import os
import tempfile
from importlib.resources import files
from pathlib import Path

from sightline.util.files import file_digest, write_bytes

SPLITS = {
    "train": "4942a5f859118f64076ce3df4f2509efa7f8857bb9bd9abbee9547c1c9940ef1",
    "test": "19442ec469494b82caf330c778620dfea4c3eb4c653b8ea4341c7396bb963701",
}  # hashes of the unpacked tar files
VERSION = "fashion-mnist-1"  # the folder in the cache; renamed whenever the data changes


def embedded(folder: Path | None = None) -> Path:
    """The folder with `train.tar` and `test.tar`, unpacked if it is not there yet or is damaged.

    Args:
        folder: where; by default in `$SIGHTLINE_CACHE`, else in the user's cache, else, if that cannot be written,
            among the temporary files.
    """
    if folder is not None:
        return _unpack(folder)
    last: OSError | None = None
    for cache in _caches():
        try:
            return _unpack(cache / VERSION)
        except OSError as error:
            last = error
    raise OSError(f"no room for the embedded data ({last}); set SIGHTLINE_CACHE to a folder that can be written")


def _caches() -> list[Path]:
    if given := os.environ.get("SIGHTLINE_CACHE"):
        return [Path(given)]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Per user: another user's folder could neither be written to nor trusted.
    owner = os.getuid() if hasattr(os, "getuid") else 0
    return [Path(user) / "sightline", Path(tempfile.gettempdir()) / f"sightline-{owner}"]


def _unpack(folder: Path) -> Path:
    """Write what is missing; several processes may do it at once."""
    for split, digest in SPLITS.items():
        path = folder / f"{split}.tar"
        if path.is_file() and file_digest(path) == digest:
            continue
        packed = files("sightline.data") / "fashion_mnist" / f"{split}.tar.xz"
        with packed.open("rb") as file, lzma.open(file) as data:
            write_bytes(path, data.read())
    return folder
