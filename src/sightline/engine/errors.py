"""What ends a run early, each with the exit status of the command."""

from sightline.util.errors import RunError

__all__ = ["STOPPED", "NonFiniteError", "PeerError", "RunError", "SaveError", "Stopped"]

STOPPED = 75  # EX_TEMPFAIL: a signal stopped the run, its state is saved, and the same command resumes it


class SaveError(RunError):
    """A checkpoint could not be written."""


class NonFiniteError(RunError):
    """A loss or gradient is not a finite number."""


class PeerError(RunError):
    """Another process of the run ended or no longer responds."""


class Stopped(RunError):
    """A signal stopped the run, and its state is saved."""

    status = STOPPED
