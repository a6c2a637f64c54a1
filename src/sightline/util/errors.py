"""The three bases of every error that a user can cause; `sightline` prints each as one line.

A message names the argument, what was expected, what was given, and an example or remedy:

    img_size: expected pixels from 1 to 65536, e.g. 224, or 384x640 (height x width); got 'abc'
"""

import re

__all__ = ["FileError", "InputError", "RunError", "WeightsWarning", "cut_words", "is_out_of_memory", "shown"]
LONG = 256  # characters without a space, the longest name of a file
VALUE = 80  # characters of a value in a message


def shown(value: object) -> str:
    """A value as messages show it: as Python writes it, in one line, the middle of a long one left out.

    >>> shown(10**100)
    '10000000000000000000000000000000000000...00000000000000000000000000000000000000'
    """
    try:
        text = " ".join(repr(value[: 2 * VALUE] if isinstance(value, str) and len(value) > LONG else value).split())
    except ValueError:  # Python does not write whole numbers of more than 4,300 digits
        text = f"{type(value).__name__} of too many digits"
    return _cut(text, VALUE)


def cut_words(message: str) -> str:
    """A message with the middle of long words left out."""
    return re.sub(rf"\S{{{LONG},}}", lambda match: _cut(match[0], LONG), message)


def is_out_of_memory(message: str) -> bool:
    """Whether an error of torch says that memory ran out; on a CPU it has no type of its own."""
    return re.search("out of memory|can't allocate memory|not enough memory", message) is not None


def _cut(text: str, length: int) -> str:
    half = (length - 3) // 2
    return text if len(text) <= length else f"{text[:half]}...{text[-half:]}"


class _Message(Exception):
    """An exception with one argument, its message, in which long words are cut."""

    def __init__(self, message: object = "") -> None:
        super().__init__(cut_words(str(message)))


class InputError(_Message, ValueError):
    """An argument, option or configuration key that cannot be used. Exit status 2."""


class FileError(_Message, ValueError):
    """A file, folder or dataset that cannot be used. Exit status 2."""


class RunError(_Message, RuntimeError):
    """A run that cannot continue; what was saved before is intact. Exit status `status`."""

    status = 1


class WeightsWarning(UserWarning):
    """Something about loaded weights that cannot be known; `sightline` prints it as one line."""
