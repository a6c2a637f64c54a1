"""What is wrong with data of sequences."""


class DataError(ValueError):
    """Files or settings that cannot be used; the message is one line that says why."""
