"""Published weights: where they are, under which licence, and the cache that keeps them.

No checksums are published. What arrives is read as data only and must have exactly the tensors of its model; its
SHA-256 is then written next to it and compared whenever it is used.
"""

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import AcquireReturnProxy, FileLock, Timeout
from torch import nn

from sightline.models.weights.fit import MismatchError, compare
from sightline.models.weights.layouts import family_of, to_native
from sightline.models.weights.packaged import packaged
from sightline.models.weights.reader import Weights, read_weights
from sightline.util.download import DownloadError, discard, download
from sightline.util.errors import FileError, InputError, WeightsWarning
from sightline.util.files import check_writable, file_digest, flush_folder, reason, write_text
from sightline.util.text import say

HOME = "SIGHTLINE_HOME"
TSINGHUA = "https://cloud.tsinghua.edu.cn/f/{}/?dl=1"
DRIVE = "https://drive.usercontent.google.com/download?id={}&export=download&confirm=t"
INLINE_LICENCE = "no licence is published (LeapLabTHU/InLine); all rights are with the authors"
SOFT_LICENCE = "MIT, Zhang Vision Group, Fudan University (fudan-zvg/SOFT)"

Build = Callable[..., nn.Module]  # a model from its arguments, on the meta device


@dataclass(frozen=True)
class Published:
    """Weights on the network.

    Args:
        url: their address.
        licence: what their authors allow.
        args: for an architecture that is published under the same name, as in the public code of SOFT.
    """

    url: str
    licence: str
    args: dict[str, Any] | None = None


@dataclass(frozen=True)
class Cached:
    """Weights on this machine.

    Args:
        name: the model.
        path: the file, as published.
        sha256: of the file.
        licence: what its authors allow.
        downloaded: whether it was downloaded just now.
    """

    name: str
    path: Path
    sha256: str
    licence: str
    downloaded: bool


_INLINE = {
    "inline_deit_tiny": "1d6b8191ad6d4114b291",
    "inline_deit_small": "2f3898b07e9247f3beb3",
    "inline_deit_base": "10bdd726d4b0435eb34e",
    "inline_pvt_tiny": "90ac52b1555b401eb5e6",
    "inline_pvt_small": "1ab953b2479d433080a3",
    "inline_pvt_medium": "a72aec31e6084bc0a280",
    "inline_pvt_large": "efd91318ba964f01b288",
    "inline_swin_tiny": "32810869fcc34410966b",
    "inline_swin_small": "e9657fd247c04c7cb1a1",
    "inline_swin_base": "bf23564bb64c420aafe1",
    "inline_cswin_tiny": "49fa2ecc543647c4b970",
    "inline_cswin_small": "59f4e65f776f4052b93c",
    "inline_cswin_base": "91e17121df284ae38521",
}
_SOFT = {
    "soft_tiny": "1S04DCotIOkP0DaBb8WStQ513z82qT9de",
    "soft_norm_tiny": "1Isy5b9v_4pyIXDqhKPNRq3WKH0etDlfl",
    "soft_norm_small": "1OBjn7FzVdNP1Urqxq7X0yDykyPhxAAW1",
    "soft_norm_medium": "1K2C6daaJn3jwurWh38uvV7rexirWjuzh",
    "soft_norm_large": "1aRYuF_gbBGyiXUDKEcpHJmM04SdvTUdP",
}
_PUBLIC_SMALL = {"depths": (1, 3, 20, 4)}  # the paper has 7 blocks in the third stage
PUBLISHED: dict[str, Published] = {
    **{name: Published(TSINGHUA.format(file), INLINE_LICENCE) for name, file in _INLINE.items()},
    **{
        name: Published(DRIVE.format(file), SOFT_LICENCE, _PUBLIC_SMALL if name == "soft_norm_small" else None)
        for name, file in _SOFT.items()
    },
}


def published_weights(name: str) -> Published:
    """Where the weights of a model are.

    Raises:
        InputError: none are published.
    """
    if packaged(name) is not None:
        raise InputError(f"{name}: its weights come with the package; pretrained=True loads them without a download")
    if name not in PUBLISHED:
        raise InputError(f"{name}: no weights are published; `sightline list` shows the models that have them")
    return PUBLISHED[name]


def cache_folder() -> Path:
    """The folder for downloaded weights: SIGHTLINE_HOME, or torch's hub folder."""
    home = os.environ.get(HOME, "").strip()
    return Path(home).expanduser() if home else Path(torch.hub.get_dir()) / "checkpoints"


def fetch(name: str, build: Build, folder: str | Path | None = None) -> Cached:
    """The published weights of a model, from the cache or the network.

    Several processes may ask at once: one downloads, the others wait. A cache that holds the file is only read.

    Args:
        name: the model.
        build: makes it on the meta device, with the arguments that are given or as published.
        folder: instead of the cache.

    Raises:
        InputError: no weights are published, or the folder cannot be written.
        FileError: no connection, or a file that is not these weights; the line has the address and the path to put a
            file that was downloaded by hand.
    """
    source = published_weights(name)
    if folder is not None and not str(folder).strip():
        raise InputError("to: the path is empty; give a folder")
    path = (cache_folder() if folder is None else Path(folder)) / f"{name}.pth"
    if path.is_file():
        return _known(name, path, source, build)
    check_writable(path.parent, HOME if folder is None else "to")
    with _lock(name, path):
        if path.is_file():  # another process was faster
            return _known(name, path, source, build)
        part = path.with_name(f"{path.name}.part")
        try:
            download(source.url, part, name)
        except DownloadError as error:
            by_hand = f"try again, or download it by hand and put it at {path}"
            raise DownloadError(f"{name}: cannot download {source.url} ({error}); {by_hand}") from error
        try:
            check_tensors(name, read_weights(part), build)
        except FileError as error:
            discard(part)
            why = str(error).removeprefix(f"{part}: ")
            raise FileError(f"{name}: {source.url} sent another file, rejected and removed: {why}") from error
        _note_path(path).unlink(missing_ok=True)  # of a file that was removed
        part.replace(path)
        discard(part)
        flush_folder(path.parent)
        digest = _note(path)
    warnings.warn(f"{name}: licence of the downloaded weights: {source.licence}", WeightsWarning, stacklevel=3)
    return Cached(name, path, digest, source.licence, True)


def check_tensors(name: str, weights: Weights, build: Build) -> None:
    """Reject weights that do not have exactly the tensors of a model, in the published layout or ours.

    Raises:
        FileError: they are of another family, or (MismatchError) have other tensors.
    """
    state = {key: value.detach().to("meta") for key, value in weights.state.items()}
    found = family_of(list(state))
    if found is not None and not found[1]:
        state = to_native(state, found[0])
    other = PUBLISHED[name].args
    mismatches = [compare(state, build(**args)) for args in ({}, *([other] if other else []))]
    if all(mismatches):
        raise MismatchError(f"{weights.path}: these are not the weights of {name}", mismatches[0])


def _known(name: str, path: Path, source: Published, build: Build) -> Cached:
    """A file of the cache, compared with its checksum; one without was put there by hand and is checked."""
    note = _note_path(path)
    try:
        noted = note.read_text(encoding="utf-8").split()[:1]
    except FileNotFoundError:
        noted = []
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{note}: cannot be read ({reason(error)}); remove it") from error
    if not noted:
        try:
            check_tensors(name, read_weights(path), build)
        except FileError as error:
            raise FileError(f"{error}; remove the file, and it is downloaded again") from error
        return Cached(name, path, _note(path), source.licence, False)
    try:
        digest = file_digest(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({reason(error).lower()}); check its permissions") from error
    if [digest] != noted:
        raise FileError(
            f"{path}: changed since it was downloaded (its SHA-256 is {digest[:12]}..., {note.name} has "
            f"{noted[0][:12]!r}...); remove both files, and they are downloaded again"
        )
    return Cached(name, path, digest, source.licence, False)


def _note_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _note(path: Path) -> str:
    """Write the checksum next to a file, as sha256sum does, if the folder can be written."""
    digest = file_digest(path)
    with suppress(OSError):
        write_text(_note_path(path), f"{digest}  {path.name}\n")
    return digest


def _lock(name: str, path: Path) -> AcquireReturnProxy:
    """The lock of a download, held; a process that has to wait says so."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        say(f"{name}: another process is downloading it; waiting", file=sys.stderr)
        return lock.acquire()
