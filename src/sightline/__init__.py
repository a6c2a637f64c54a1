"""sightline: vision transformers whose attention costs linear time.

Importing it registers every model with timm:

    import sightline, timm
    model = timm.create_model("inline_swin_tiny", img_size=512, num_classes=10)
"""

from importlib.metadata import PackageNotFoundError, version

from sightline import layers, models, ops

try:
    __version__ = version("sightline")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__", "layers", "models", "ops"]
