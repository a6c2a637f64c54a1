"""Images that could not be used: a run stops at the first, or counts and names them, as `data.on_error` says."""

from typing import Any

from sightline.data.images import ImageError
from sightline.tasks.dense.config import SKIP
from sightline.tasks.dense.loading import Loaded


class Broken:
    """Every message once.

    Args:
        on_error: "stop" or "skip".
        skip: the option that goes on without them, for messages.
    """

    def __init__(self, on_error: str, skip: str = SKIP) -> None:
        self.on_error, self.skip = on_error, skip
        self.messages: dict[str, None] = {}

    def note(self, loaded: Loaded) -> None:
        """Take the messages of a batch.

        Raises:
            ImageError: there is one, and `on_error` is "stop".
        """
        for message in loaded.broken:
            if self.on_error == "stop":
                raise ImageError(f"{message}; repair or remove it, or pass {self.skip}")
            if message not in self.messages:
                self.messages[message] = None
                print(f"skipped: {message}", flush=True)

    def training(self, loaded: Loaded) -> list[Any]:
        """The items of a training batch, whose broken ones were replaced, after their messages are taken.

        Raises:
            ImageError: as in `note`, or nothing was left to replace them with.
        """
        self.note(loaded)
        if not loaded.items:
            raise ImageError(f"no usable image to train on: {next(iter(self.messages))}; repair them")
        return loaded.items
