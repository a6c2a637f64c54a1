"""Images that could not be used: a run stops at the first, or counts and names them, as `data.on_error` says."""

from sightline.tasks.classification.images import ImageError
from sightline.tasks.dense.loading import Loaded


class Broken:
    """Every message once."""

    def __init__(self, on_error: str) -> None:
        self.on_error = on_error
        self.messages: dict[str, None] = {}

    def note(self, loaded: Loaded) -> None:
        """Take the messages of a batch.

        Raises:
            ImageError: there is one, and `on_error` is "stop".
        """
        for message in loaded.broken:
            if self.on_error == "stop":
                raise ImageError(f"{message}; repair or remove it, or pass --data.on_error skip")
            if message not in self.messages:
                self.messages[message] = None
                print(f"skipped: {message}", flush=True)
