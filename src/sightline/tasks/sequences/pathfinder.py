"""Pathfinder, 32 x 32: are the two discs ends of the same dashed path?

The generator is our own, in the manner of the published task: two long paths of dashes that bend at random, shorter
ones to distract, and two discs, either at both ends of one long path (label 1) or at an end of each (label 0). Images
differ in nothing else: room for discs is kept at every end. Dashes of a path are at most LINK pixels apart, those of
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
LINK = 3  # largest distance, along rows or columns, between neighboring dashes of a path
DASH, GAP = 2.0, 3.0  # lengths from tip to tip in pixels; a gap of 3 has one or two dark pixels
DASHES = 6  # of the two long paths
DISTRACTORS = 8  # short paths that are tried in an image; those that fit are kept
IMAGES = 2048  # made at a time
MANY = 8  # batches from which starting several processes is worthwhile
DISC = np.array([(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)])  # pixels from its middle


def generate(count: int, seed: int, note: Note = quiet, workers: int | None = None) -> TokenSet:
    """`count` images with labels, half of them connected (one more is not); the same for a seed on every machine.

    Args:
        workers: processes that draw; by default one per processor for large sets.
    """
    pictures: list[bytes] = []
    labels: list[int] = []
    number = 0
    while len(labels) < count:
        missing = -(-(count - len(labels)) // IMAGES)
        for images, connected in _drawn(seed, range(number, number + missing), workers):
            pictures += map(bytes, images)
            labels += connected.tolist()
            note("pathfinder, examples generated", min(len(labels), count), count)
        number += missing
    return TokenSet.pack(pictures[:count], labels[:count], SIDE * SIDE)


def _drawn(seed: int, numbers: range, workers: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of images in the order of their numbers, on which alone they depend."""
    one = partial(draw, seed, IMAGES)
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


def draw(seed: int, count: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch `number`: up to `count` images (n, 1024) uint8, and labels (n,), alternating.

    Images without room for two long paths are left out.
    """
    rng = np.random.default_rng(derive(seed, number))
    lit = np.zeros((count, SIDE, SIDE), dtype=bool)
    taken = np.zeros_like(lit)  # within LINK of something
    tips = np.zeros((count, 2, 2, 2), dtype=np.int64)  # path, end, (row, column)
    whole = np.ones(count, dtype=bool)
    for path in range(2):
        placed, tips[:, path] = place(rng, lit, taken, np.full(count, DASHES), whole, discs=True, tries=100)
        whole &= placed
    for _ in range(DISTRACTORS):
        place(rng, lit, taken, rng.integers(1, DASHES // 2 + 1, count), whole, discs=False, tries=4)
    chosen = np.flatnonzero(whole)
    chosen = chosen[: len(chosen) // 2 * 2]
    label = np.arange(len(chosen)) % 2
    first = rng.integers(0, 2, (len(chosen), 2))  # a path, and the end of it that has a disc
    end = np.where(label == 1, 1 - first[:, 1], rng.integers(0, 2, len(chosen)))
    other = np.where(label == 1, first[:, 0], 1 - first[:, 0])
    images = lit[chosen]
    for tip in (tips[chosen, first[:, 0], first[:, 1]], tips[chosen, other, end]):
        row, column = (tip[:, None] + DISC).transpose(2, 0, 1)
        images[np.arange(len(chosen))[:, None], row, column] = True
    contrast = rng.integers(128, 256, len(chosen)).astype(np.uint8)
    return images.reshape(len(chosen), -1) * contrast[:, None], label


def place(
    rng: np.random.Generator,
    lit: np.ndarray,
    taken: np.ndarray,
    dashes: np.ndarray,
    wanted: np.ndarray,
    *,
    discs: bool,
    tries: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Try to add a path to every wanted image; whether it fitted (n,), and its tips (n, 2, 2).

    Args:
        lit, taken: (n, 32, 32), changed in place.
        dashes: of every path.
        discs: keep room for a disc at both ends.
        tries: before an image is given up.
    """
    done = np.zeros(len(lit), dtype=bool)
    tips = np.zeros((len(lit), 2, 2), dtype=np.int64)
    for _ in range(tries):
        todo = np.flatnonzero(wanted & ~done)
        if not len(todo):
            break
        pixels, exists = walk(rng, dashes[todo])  # n L 3 2, n L
        ends = np.stack([pixels[:, 0, 0], pixels[np.arange(len(todo)), dashes[todo] - 1, 2]], 1)
        covered = pixels.reshape(len(todo), -1, 2)
        valid = np.repeat(exists, 3, 1)
        if discs:
            covered = np.concatenate([covered, (ends[:, :, None] + DISC).reshape(len(todo), -1, 2)], 1)
            valid = np.concatenate([valid, np.ones((len(todo), 18), dtype=bool)], 1)
        inside = ((covered >= 0) & (covered < SIDE)).all(-1)
        row, column = np.clip(covered, 0, SIDE - 1).transpose(2, 0, 1)
        free = inside & ~taken[todo[:, None], row, column]
        good = (free | ~valid).all(1)
        good[good] = _simple(pixels[good], exists[good], ends[good] if discs else None)
        for i in np.flatnonzero(good):
            _mark(lit[todo[i]], taken[todo[i]], pixels[i][exists[i]].reshape(-1, 2), covered[i][valid[i]])
        done[todo[good]] = True
        tips[todo[good]] = ends[good]
    return done, tips


def walk(rng: np.random.Generator, dashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Random paths: the pixels of their dashes (n, L, 3, 2) as (row, column), and which dashes there are (n, L)."""
    count, most = len(dashes), int(dashes.max())
    bend = rng.normal(0, 0.12, (count, 1)) + rng.normal(0, 0.12, (count, 2 * most))
    angle = rng.uniform(0, 2 * np.pi, (count, 1)) + np.cumsum(bend, 1)
    steps = np.stack([np.sin(angle), np.cos(angle)], -1)  # a dash, a gap, a dash ...
    steps *= np.where(np.arange(2 * most) % 2 == 0, DASH, GAP)[:, None]
    corners = np.concatenate([np.zeros((count, 1, 2)), np.cumsum(steps, 1)], 1)[:, : 2 * most]
    low, high = corners.min(1, keepdims=True), corners.max(1, keepdims=True)
    # Anywhere in the image where it is whole, with room for discs; one that is too large starts outside.
    corners = corners + 1 - low + rng.random((count, 1, 2)) * (SIDE - 3 - (high - low))
    head, tail = corners[:, 0:-1:2], corners[:, 1::2]
    pixels = np.rint(np.stack([head, (head + tail) / 2, tail], 2)).astype(np.int64)
    return pixels, np.arange(most) < dashes[:, None]


def _simple(pixels: np.ndarray, exists: np.ndarray, tips: np.ndarray | None) -> np.ndarray:
    """Whether only neighboring dashes of a path are within reach of each other; discs reach a pixel further."""
    most = pixels.shape[1]
    apart = np.abs(pixels[:, :, None, :, None] - pixels[:, None, :, None, :]).max(-1).min((-1, -2))  # n L L
    distant = np.abs(np.subtract.outer(np.arange(most), np.arange(most))) >= 2
    both = exists[:, :, None] & exists[:, None, :]
    fine = (apart > LINK) | ~distant | ~both
    good = fine.all((1, 2))
    if tips is not None:
        reach = np.abs(tips[:, :, None, None] - pixels[:, None]).max(-1).min(-1)  # n 2 L
        good &= (reach[:, 0, 2:] > LINK + 1).all(1) & (reach[:, 1, :-2] > LINK + 1).all(1)
    return good


def _mark(lit: np.ndarray, taken: np.ndarray, dashes: np.ndarray, covered: np.ndarray) -> None:
    """Draw the dashes (p, 2) into an image, and take the surroundings of all that is covered (q, 2)."""
    lit[dashes[:, 0], dashes[:, 1]] = True
    for row, column in covered:
        taken[max(row - LINK, 0) : row + LINK + 1, max(column - LINK, 0) : column + LINK + 1] = True
