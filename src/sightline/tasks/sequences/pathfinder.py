"""Pathfinder, 32 x 32: are the two discs ends of the same dashed path?

The generator is our own and follows the description of the published one (Learning long-range spatial dependencies with
horizontal gated recurrent units, 2018; Long Range Arena). Two long paths start near the middle of the image, seven
pixels apart; dashes and gaps are two pixels long, and a dash turns from the one before by an angle of density cos^2.
Shorter paths distract. A disc is at the start of a long path and another at the end of the same path (label 1) or of
the other (label 0). Unlike in the published images, dashes of a path are at most LINK pixels apart and those of
different paths always more, so that the pixels alone tell what is connected.
"""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from threading import Thread

import numpy as np

from sightline.data.loader import start_worker
from sightline.data.order import derive
from sightline.tasks.sequences.tokens import Note, TokenSet, quiet

SIDE = 32
LINK = 2  # largest distance, along rows or columns, between neighboring dashes of a path
DASH, GAP = 2.0, 2.0  # lengths from tip to tip in pixels
START = 7.0  # between the starts of the two long paths
DASHES = 14  # of a long path, as published; 9 and 6 are the published easier levels
DRAWS = 12  # of the next dash before a path is given up
TRIES = (10, 60, 4)  # of the first long path, of the second, and of each that distracts
IMAGES = 256  # at a time; some have no room for two long paths
MANY = 8  # batches from which starting several processes is worthwhile
AROUND = {  # offsets of the pixels up to some distance
    reach: np.array([(row, column) for row in range(-reach, reach + 1) for column in range(-reach, reach + 1)])
    for reach in (1, LINK, LINK + 1, LINK + 2)
}


def generate(
    count: int, seed: int, note: Note = quiet, workers: int | None = None, *, dashes: int = DASHES,
    distractors: int | None = None,
) -> TokenSet:  # fmt: skip
    """`count` images with labels, half of them connected (one more is not); the same for a seed on every machine.

    Args:
        workers: processes that draw; by default one per processor for large sets.
        dashes: of the two long paths.
        distractors: paths of a third as many dashes; by default as many as make up 20 dashes.
    """
    if distractors is None:
        distractors = 20 // max(dashes // 3, 1)
    pictures: list[bytes] = []
    labels: list[int] = []
    number = 0
    while len(labels) < count:
        share = len(labels) / (number * IMAGES) if labels else 1.0  # of the images that have room
        missing = -(-(count - len(labels)) // int(IMAGES * share + 1))
        for images, connected in _drawn(seed, range(number, number + missing), workers, dashes, distractors):
            pictures += map(bytes, images)
            labels += connected.tolist()
            note("pathfinder, examples generated", min(len(labels), count), count)
        number += missing
    return TokenSet.pack(pictures[:count], labels[:count], SIDE * SIDE)


def _drawn(
    seed: int, numbers: range, workers: int | None, dashes: int, distractors: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of images in the order of their numbers, on which alone they depend."""
    one = partial(draw, seed, IMAGES, dashes=dashes, distractors=distractors)
    if workers is None:
        workers = (os.cpu_count() or 1) if len(numbers) >= MANY else 1
    if workers == 1:
        yield from map(one, numbers)
        return
    with ProcessPoolExecutor(min(workers, len(numbers)), initializer=_follow) as pool:
        yield from pool.map(one, numbers)


def _follow() -> None:
    """A worker ends with the process that started it, however that ends, and ignores signals."""
    start_worker(0)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def draw(
    seed: int, count: int, number: int, *, dashes: int = DASHES, distractors: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Batch `number`: up to `count` images (n, 1024) uint8, and labels (n,), alternating.

    Images without room for two long paths are left out.
    """
    rng = np.random.default_rng(derive(seed, number))
    scene = Scene(rng, np.zeros((2, count, SIDE, SIDE), dtype=bool))
    ends = np.zeros((count, 2, 2, 2), dtype=np.int64)  # path, start and end, (row, column)
    whole = np.ones(count, dtype=bool)
    for path in range(2):
        whole, ends[:, path] = scene.add(dashes, whole, TRIES[path], near=ends[:, 0, 0] if path else None, discs=True)
    for _ in range(distractors):
        scene.add(max(dashes // 3, 1), whole, TRIES[2])
    chosen = np.flatnonzero(whole)
    chosen = chosen[: len(chosen) // 2 * 2]
    every, label, first = np.arange(len(chosen)), np.arange(len(chosen)) % 2, rng.integers(0, 2, len(chosen))
    images = scene.lit[chosen] * rng.integers(96, 192, (len(chosen), 1, 1)).astype(np.uint8)
    for tip in (ends[chosen, first, 0], ends[chosen, np.where(label == 1, first, 1 - first), 1]):
        row, column = (tip[:, None] + AROUND[1]).transpose(2, 0, 1)
        images[every[:, None], row, column] = 255
    return images.reshape(len(chosen), -1), label


class Scene:
    """Images that are drawn at once.

    Args:
        rng: source of randomness.
        maps: (2, n, 32, 32): pixels that are lit, and those near something, where no other path may be.
    """

    def __init__(self, rng: np.random.Generator, maps: np.ndarray) -> None:
        self.rng, self.maps = rng, maps
        self.lit, self.taken = maps

    def add(
        self, dashes: int, wanted: np.ndarray, tries: int, near: np.ndarray | None = None, discs: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add a path to every wanted image; whether it had room (n,), and its ends (n, 2, 2).

        Args:
            dashes: of a path.
            tries: before an image is given up.
            near: (n, 2), points that paths start at some distance from; by default they start anywhere.
            discs: keep room for a disc at both ends, and start in the middle of the image.
        """
        done, ends = np.zeros(len(wanted), dtype=bool), np.zeros((len(wanted), 2, 2), dtype=np.int64)
        for _ in range(tries):
            todo = np.flatnonzero(wanted & ~done)
            if not len(todo):
                break
            low = SIDE / 4 if discs else 1.0
            starts = self.rng.uniform(low, SIDE - 1 - low, (len(todo), 2))
            if near is not None:
                starts = near[todo] + START * _direction(self.rng.uniform(0, 2 * np.pi, len(todo)))
            path = Path(Scene(self.rng, self.maps[:, todo]), starts)
            for _ in range(dashes):
                todo = todo[path.grow()]
            if discs:
                todo = todo[path.keep(path.has_room())]
            path.settle(discs)
            self.maps[:, todo] = path.scene.maps
            done[todo], ends[todo] = True, path.ends
        return done, ends

    def free(self, pixels: np.ndarray) -> np.ndarray:
        """Whether pixels (n, D, p, 2) are all inside, with room for a disc, and not taken, (n, D)."""
        inside = ((pixels >= 1) & (pixels < SIDE - 1)).all((2, 3))
        row, column = np.clip(pixels, 0, SIDE - 1).transpose(3, 0, 1, 2)
        return inside & ~self.taken[np.arange(len(pixels))[:, None, None], row, column].any(2)

    def take(self, pixels: np.ndarray, reach: int) -> None:
        """Take the surroundings of pixels (n, p, 2)."""
        near = np.clip(
            (pixels[:, :, None] + AROUND[reach]).reshape(len(pixels), pixels.shape[1] * len(AROUND[reach]), 2),
            0,
            SIDE - 1,
        )
        self.taken[np.arange(len(near))[:, None], near[..., 0], near[..., 1]] = True


class Path:
    """A path in every image of a scene.

    Args:
        scene: where it is.
        start: (n, 2), the first tip as (row, column).
    """

    def __init__(self, scene: Scene, start: np.ndarray) -> None:
        self.scene, self.tip = scene, start
        self.angle = scene.rng.uniform(0, 2 * np.pi, len(start))
        self.dashes: list[np.ndarray] = []  # the pixels (n, 3, 2) of each

    @property
    def ends(self) -> np.ndarray:
        """The pixels (n, 2, 2) of the first tip and of the last."""
        return np.stack([self.dashes[0][:, 0], self.dashes[-1][:, 2]], 1)

    def grow(self) -> np.ndarray:
        """Add a dash and go on with the images that have room for it; which those are, (n,)."""
        scene, count = self.scene, len(self.tip)
        turn = turns(scene.rng, (count, DRAWS))  # n D
        angles = self.angle[:, None] + turn
        gap = GAP if self.dashes else 0.0
        heads = self.tip[:, None] + gap * _direction(angles - turn / 2)
        tails = heads + DASH * _direction(angles)
        pixels = np.rint(np.stack([heads, (heads + tails) / 2, tails], 2)).astype(np.int64)  # n D 3 2
        fits = scene.free(pixels)
        room = sum(scene.free(_ahead(tails, angles + turn)) for turn in (-np.pi / 4, 0.0, np.pi / 4))
        # One that leaves room for another, if there is one.
        chosen = np.arange(count), np.argmax(fits * (1 + (room > 0)), 1)
        if self.dashes:  # the next dash may be near the last one, but not near those before
            scene.take(self.dashes[-1], LINK)
        self.tip, self.angle = tails[chosen], angles[chosen]
        self.dashes.append(pixels[chosen])
        found = self.keep(fits[chosen])
        last = self.dashes[-1]
        self.scene.lit[np.arange(len(last))[:, None], last[..., 0], last[..., 1]] = True
        return found

    def keep(self, which: np.ndarray) -> np.ndarray:
        """Go on with some of the images, given as (n,) booleans, which are returned."""
        self.scene = Scene(self.scene.rng, self.scene.maps[:, which])
        self.tip, self.angle, self.dashes = self.tip[which], self.angle[which], [dash[which] for dash in self.dashes]
        return which

    def has_room(self) -> np.ndarray:
        """Whether discs at both ends are away from other discs and all but the nearest dashes of the path, (n,)."""
        room = np.ones(len(self.tip), dtype=bool)
        for end, own in ((0, self.dashes[:2]), (1, self.dashes[-2:])):
            others = self.scene.lit.copy()
            for dash in own:
                others[np.arange(len(dash))[:, None], dash[..., 0], dash[..., 1]] = False
            near = np.clip(self.ends[:, end : end + 1] + AROUND[LINK + 2], 0, SIDE - 1)
            room &= ~others[np.arange(len(near))[:, None], near[..., 0], near[..., 1]].any(1)
        return room

    def settle(self, discs: bool) -> None:
        """Take the surroundings of the last dash, and those of the discs."""
        self.scene.take(self.dashes[-1], LINK)
        if discs:
            self.scene.take(self.ends, LINK + 1)


def turns(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Angles from -pi / 2 to pi / 2 of density cos^2, by their distribution function."""
    grid = np.linspace(-np.pi / 2, np.pi / 2, 257)
    return np.interp(rng.random(shape), 0.5 + grid / np.pi + np.sin(2 * grid) / (2 * np.pi), grid)


def _ahead(tips: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """The pixels (n, D, 2, 2) of a dash that would continue at these angles after a gap."""
    steps = _direction(angles)
    return np.rint(np.stack([tips + GAP * steps, tips + (GAP + DASH) * steps], 2)).astype(np.int64)


def _direction(angle: np.ndarray) -> np.ndarray:
    """Unit vectors (..., 2) as (row, column)."""
    return np.stack([np.sin(angle), np.cos(angle)], -1)
