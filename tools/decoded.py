"""Images that several trainings share: decoded by one process, kept in a file for the others."""

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sightline.tasks.classification import loaders

decode = loaders.preload


def share_decoded(cache: Path) -> None:
    """From now on, trainings of this process keep what they decode in the folder `cache`, or find it there."""
    loaders.preload = _shared(cache)


def _shared(cache: Path) -> Callable[..., loaders.Kept]:
    def preload(split: Any, card: Any, whole: bool, workers: int, placement: Any, broken: Any) -> loaders.Kept:
        what = f"{split.title}-{len(split)}-{card.input_size}-{card.crop_pct}-{card.interpolation}-{whole}"
        path = cache / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.pt"
        cache.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process decodes, the others wait
            if not path.exists():
                batch = decode(split, card, whole, workers, placement, broken)
                torch.save([tensor.cpu() for tensor in batch], path.with_suffix(".part"))
                path.with_suffix(".part").rename(path)
        return loaders.Kept(*(tensor.to(placement.device) for tensor in torch.load(path, weights_only=True)))

    return preload
