"""What users of a command see: its own lines, and no warnings of the libraries below it."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = ("accelerate", "datasets", "huggingface_hub", "timm", "torch", "torch.utils.cpp_extension")


@contextmanager
def quiet() -> Iterator[None]:
    """Within it libraries warn of nothing, unless python -W or PYTHONWARNINGS asks for it; errors still show."""
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            for name in LOGGERS:
                logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)
