"""The three bases of every error that a user can cause; `sightline` prints each as one line.

A message names the argument, what was expected, what was given, and an example or remedy:

    --scales: expected comma-separated factors between 0.1 and 8, e.g. 0.5,0.75,1.0; got 'abc'
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
