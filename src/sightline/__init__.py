"""sightline: vision transformers whose attention costs linear time.

Importing it registers every model with timm:

    import sightline, timm
    model = timm.create_model("inline_swin_tiny", img_size=512, num_classes=10)
"""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

try:
    __version__ = version("sightline")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__", "layers", "models", "ops"]


def _is_command() -> bool:
    """Whether the process is the command `sightline`, whose commands import what they need when they run."""
    script = Path(sys.argv[0]).name if sys.argv else ""
    by_module = script == "-m" and ("-m", "sightline") in pairwise(sys.orig_argv)  # as while Python looks for __main__
    return script in ("sightline", "sightline.exe") or by_module


def __getattr__(name: str) -> Any:
    if name in ("layers", "models", "ops"):
        return import_module(f"sightline.{name}")
    raise AttributeError(f"module 'sightline' has no attribute {name!r}")


if not _is_command():  # torch and timm take seconds, which `sightline --help` need not
    from sightline import layers, models, ops
