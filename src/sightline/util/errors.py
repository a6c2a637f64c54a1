"""The three bases of every error that a user can cause; `sightline` prints each as one line.

A message names the argument, what was expected, what was given, and an example or remedy:

    img_size: expected pixels from 1 to 65536, e.g. 224, or 384x640 (height x width); got 'abc'
"""

__all__ = ["FileError", "InputError", "RunError", "WeightsWarning"]


class InputError(ValueError):
    """An argument, option or configuration key that cannot be used. Exit status 2."""


class FileError(ValueError):
    """A file, folder or dataset that cannot be used. Exit status 2."""


class RunError(RuntimeError):
    """A run that cannot continue; what was saved before is intact. Exit status `status`."""

    status = 1


class WeightsWarning(UserWarning):
    """Something about loaded weights that cannot be known; `sightline` prints it as one line."""
