"""What the page can ask for: images, panels (a model on an image) and what is inside them; kept in memory, bounded."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock, Semaphore
from typing import Annotated, TypeVar

import torch
from pydantic import Field

from sightline.explorer.factored import keep_factors
from sightline.explorer.inside import SCORE, SCORES
from sightline.explorer.kept import Kept
from sightline.explorer.models import FIRST, Models
from sightline.explorer.pictures import Picture, Pictures, UnknownError, as_jpeg
from sightline.explorer.views import Answer, Query, View
from sightline.util.errors import InputError, RunError
from sightline.util.names import format_size
from sightline.util.provenance import VERSION
from sightline.util.text import one_line

SIZES = (224, 288, 384, 512, 768, 1024)
SMALLEST, LARGEST = 16, 1024  # pixels along a side
MAX_PANELS = 3
PANELS = 2 << 30  # bytes of all panels together
ANSWERS = 64 << 20  # bytes
MAX_WAITING = 8  # requests for panels, and for slow answers, at a time
V = TypeVar("V")
Name = Annotated[str, Field(max_length=200)]
Side = Annotated[int, Field(ge=SMALLEST, le=LARGEST)]


class BusyError(RunError):
    """Too many requests at a time."""


class Turns:
    """Long work, so many at a time; a few more may wait, so that threads are left for what is quick."""

    def __init__(self, places: int) -> None:
        self._places, self._waiting, self._count = Semaphore(places), 0, Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for a turn.

        Raises:
            BusyError: too many wait already.
        """
        with self._count:
            if self._waiting >= MAX_WAITING:
                raise BusyError("too much is being computed; wait a little")
            self._waiting += 1
        try:
            with self._places:
                yield
        finally:
            with self._count:
                self._waiting -= 1


@dataclass(frozen=True)
class Wanted:
    """A panel: a model, with another attention or its own, on an image at a size (height, width)."""

    image: Name
    model: Name
    size: tuple[Side, Side]
    attention: Name | None = None

    @property
    def id(self) -> str:
        return sha256(repr((self.image, self.model, self.size, self.attention)).encode()).hexdigest()[:20]


class Session:
    """Everything behind the page.

    Args:
        models: what can be chosen.
        image: a file to start with; by default the first sample.
        attention: mechanisms to start with.
        size: (height, width) to start with; by default as the first model was trained.

    Raises:
        ImageError: the image cannot be read.
        InputError: there are more panels than fit, or a mechanism does not fit a model.
    """

    def __init__(
        self,
        models: Models,
        image: str | None = None,
        attention: Sequence[str] = (),
        size: tuple[int, int] | None = None,
    ) -> None:
        self.models, self.pictures = models, Pictures(models.first.card)
        first = next(iter(self.pictures.samples)) if image is None else self.pictures.open(image).id
        chosen: Sequence[str | None] = attention or (FIRST if models.is_default else (None,))
        size = size or models.first.card.input_size[1:]
        if not all(SMALLEST <= side <= LARGEST for side in size):
            raise InputError(f"img_size: expected from {SMALLEST} to {LARGEST} pixels; got {size[0]}x{size[1]}")
        self.start = [Wanted(first, id, size, name) for id in models.bases for name in chosen]
        if len(self.start) > MAX_PANELS:
            raise InputError(f"attention: {len(self.start)} panels; at most {MAX_PANELS} stand side by side")
        self._panels: Kept[View] = Kept(PANELS, lambda view: view.memory, least=MAX_PANELS)
        self._wanted: Kept[Wanted] = Kept(1000)
        self._answers: Kept[Answer] = Kept(ANSWERS, _size)
        self._factors = keep_factors()
        self._running, self._decoding, self._slow = Turns(1), Turns(1), Turns(MAX_PANELS)
        self._arriving = Turns(MAX_WAITING)
        for wanted in self.start:
            models.find(wanted.model, wanted.attention)

    def options(self) -> Answer:
        first = self.start[0]
        panels = [{"model": item.model, "attention": item.attention} for item in self.start]
        pictures = [*self.pictures.given.values(), *self.pictures.samples.values()]
        return {
            "version": VERSION,
            "samples": [item.facts() for item in pictures],
            "models": [{"id": id, "title": item.title} for id, item in self.models.bases.items()],
            "attentions": self.models.attentions,
            "sizes": sorted({*SIZES, *(side for side in first.size if first.size[0] == first.size[1])}),
            "scores": list(SCORES),
            "score": SCORE,
            "max_panels": MAX_PANELS,
            "start": {"image": first.image, "size": list(first.size), "panels": panels},
        }

    def receiving(self) -> AbstractContextManager[None]:
        """While an upload arrives: a few at a time, and none waits.

        Raises:
            BusyError: too many arrive already.
        """
        return self._arriving.take()

    def upload(self, data: bytes, name: str = "") -> Picture:
        """Add an image, of which one is decoded at a time; see `Pictures.add`."""
        with self._decoding.take():
            return self.pictures.add(data, name)

    def picture(self, id: str, size: tuple[int, int]) -> bytes:
        """A JPEG file of what models see of an image."""
        return as_jpeg(self.pictures.seen(self.pictures.find(id), size))

    def panel(self, wanted: Wanted) -> Answer:
        """Run a model on an image.

        Raises:
            UnknownError: there is no such image or model.
            InputError: the attention does not fit the model, or the model not the size.
            BusyError: too many are waiting.
        """
        view = self._panels.find(wanted.id)
        if view is None:
            with self._running.take():  # one model is built or runs at a time
                view = self._panels.get(wanted.id, lambda: self._view(wanted))
        self._wanted.get(wanted.id, lambda: wanted)
        return {"id": wanted.id, **self._answers.get((wanted.id,), view.facts)}

    def _view(self, wanted: Wanted) -> View:
        picture = self.pictures.find(wanted.image)
        model = self.models.find(wanted.model, wanted.attention)
        card = model.card
        pixels = self.pictures.seen(picture, wanted.size, card.input_size[0])
        mean, std = (torch.tensor(values)[:, None, None] for values in (card.mean, card.std))
        image = ((pixels - mean) / std).to(self.models.device)
        try:
            return View(model, image, self._factors)
        except (RuntimeError, MemoryError) as error:
            size = format_size(wanted.size)
            raise InputError(f"{model.title} cannot be run at {size} ({one_line(error, 200)})") from error

    def view(self, panel: str) -> View:
        """A panel that was made.

        Raises:
            UnknownError: there is none, or no longer.
        """
        if found := self._panels.find(panel):
            return found
        raise UnknownError("no such panel, or no longer; choose its model again")

    def wanted(self, panel: str) -> Wanted:
        """What a panel was made for."""
        if found := self._wanted.find(panel):
            return found
        raise UnknownError("no such panel, or no longer; choose its model again")

    def ask(self, panel: str, what: Callable[[View], Answer], *key: object) -> Answer:
        """An answer about a panel, computed once for its key."""
        view = self.view(panel)
        return self._answers.get((panel, *key), lambda: what(view))

    def row(self, panel: str, block: int, query: Query) -> Answer:
        """The attention of a query in a block; see `View`, also for the following."""
        return self.ask(panel, lambda view: view.row(block, query), "row", block, query)

    def local(self, panel: str, block: int, query: Query) -> Answer:
        return self.ask(panel, lambda view: view.local(block, query), "local", block, query)

    def rollout(self, panel: str, query: Query) -> Answer:
        return self._ask_slowly(panel, lambda view: view.rollout(query), "rollout", query)

    def confusion(
        self, panel: str, block: int, head: int | None, query: Query, centred: bool = False, score: float = SCORE
    ) -> Answer:
        key = ("confusion", block, head, query, centred, score)
        return self._ask_slowly(panel, lambda view: view.confusion(block, head, query, centred, score), *key)

    def _ask_slowly(self, panel: str, what: Callable[[View], Answer], *key: object) -> Answer:
        """`ask` for what takes seconds of large images, a few at a time."""
        return self._answers.find((panel, *key)) or self.slowly(lambda: self.ask(panel, what, *key))

    def slowly(self, make: Callable[[], V]) -> V:
        """Make something that may take seconds, a few at a time, so that the page always has an answer to the rest.

        Raises:
            BusyError: too many are waiting.
        """
        with self._slow.take():
            return make()


def _size(answer: Answer) -> int:
    """Bytes of an answer, about."""
    return 500 + sum(len(value) * (1 if isinstance(value, str) else 8) for value in answer.values() if _is_long(value))


def _is_long(value: object) -> bool:
    return isinstance(value, str | list)
