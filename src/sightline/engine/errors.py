"""What ends a run before its end, each with the exit status of the command."""

STOPPED = 75  # the system's number for «try again»: the run was asked to stop, saved its state, and can be resumed


class RunError(RuntimeError):
    """A run that cannot go on; the message is one line. What was saved before is intact."""

    status = 1


class SaveError(RunError):
    """A checkpoint that could not be written."""


class NonFiniteError(RunError):
    """A loss or gradient that is not a finite number."""


class PeerError(RunError):
    """Another process of the run ended, or answers no more."""


class Stopped(RunError):
    """A signal asked the run to stop, and its state is saved."""

    status = STOPPED
