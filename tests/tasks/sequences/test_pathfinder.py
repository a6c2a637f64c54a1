"""Pathfinder: what is connected is found again from the pixels, by a search of its own."""

import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.tasks.sequences import pathfinder
from sightline.tasks.sequences.config import Data
from sightline.tasks.sequences.data import open_splits
from sightline.tasks.sequences.files import read_pathfinder
from sightline.util.errors import FileError
from tests.engine.tiny import ENVIRONMENT

COUNT = 300


@pytest.fixture(scope="module")
def made() -> pathfinder.TokenSet:
    return pathfinder.generate(COUNT, seed=5, dashes=9)


def pictures(tokens: pathfinder.TokenSet) -> np.ndarray:
    return tokens.values.reshape(-1, 32, 32)


def discs(image: np.ndarray) -> list[tuple[int, int]]:
    """The middles of squares of 3 x 3 bright pixels."""
    lit = image == 255
    return [(r, c) for r in range(1, 31) for c in range(1, 31) if lit[r - 1 : r + 2, c - 1 : c + 2].all()]


def reachable(image: np.ndarray, start: tuple[int, int]) -> set[tuple[int, int]]:
    """Lit pixels that can be reached by steps of up to two rows and columns between lit pixels."""
    lit = set(zip(*(axis.tolist() for axis in np.nonzero(image)), strict=True))
    found, todo = {start}, [start]
    while todo:
        r, c = todo.pop()
        near = {(r + i, c + j) for i in range(-2, 3) for j in range(-2, 3)} & lit - found
        found |= near
        todo.extend(near)
    return found


@pytest.mark.slow
def test_labels_say_what_is_connected(made: pathfinder.TokenSet) -> None:
    for image, label in zip(pictures(made), made.labels, strict=True):
        ends = discs(image)
        assert len(ends) == 2
        assert (ends[1] in reachable(image, ends[0])) == bool(label)


def test_there_is_something_to_distract(made: pathfinder.TokenSet) -> None:
    """Both long paths are in every image, connected or not, and most have more than those."""
    others = []
    for image in pictures(made):
        left = set(zip(*(axis.tolist() for axis in np.nonzero(image)), strict=True))
        count = 0
        while left:
            left -= reachable(image, next(iter(left)))
            count += 1
        others.append(count)
    assert min(others) >= 2
    assert np.mean(others) > 4


def test_nothing_but_the_discs_tells_the_classes_apart(made: pathfinder.TokenSet) -> None:
    lit = (pictures(made) > 0).sum((1, 2))
    zero, one = (lit[made.labels == label] for label in (0, 1))
    assert abs(zero.mean() - one.mean()) < 4 * lit.std() * (4 / COUNT) ** 0.5


def test_classes_are_balanced(made: pathfinder.TokenSet) -> None:
    assert made.labels.sum() == COUNT // 2
    assert made.labels[:101].sum() == 50


def test_the_seed_decides(made: pathfinder.TokenSet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sha256(made.values.tobytes()).hexdigest()[:16] == "90be59f5870bfefb"  # else data.VERSIONS must change
    assert len({image.tobytes() for image in pictures(made)}) == COUNT
    monkeypatch.setattr(pathfinder, "IMAGES", 64)
    one, again, other = (pathfinder.generate(100, seed=seed, dashes=6).values.tobytes() for seed in (5, 5, 6))
    assert one == again != other


def test_several_processes_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathfinder, "IMAGES", 16)
    one, several = (pathfinder.generate(100, seed=3, workers=workers, dashes=4) for workers in (1, 3))
    assert one.values.tobytes() == several.values.tobytes()
    assert one.labels.tolist() == several.labels.tolist()


@pytest.mark.parametrize("dashes", [3, 6])
def test_levels(dashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of as many dashes and, where there are distractors, of a third as many."""
    monkeypatch.setattr(pathfinder, "IMAGES", 16)
    plain = pathfinder.generate(16, 0, dashes=dashes, distractors=0)
    for image, label in zip(pictures(plain), plain.labels, strict=True):
        ends = discs(image)
        first = reachable(image, ends[0])
        assert len(ends) == 2
        assert (ends[1] in first) == bool(label)
        rest = set(zip(*(axis.tolist() for axis in np.nonzero(image)), strict=True)) - first
        assert rest
        assert reachable(image, next(iter(rest))) == rest
        assert len(rest) + len(first) <= 2 * (3 * dashes + 8)  # pixels of dashes, and what discs add to their ends
    assert (pictures(pathfinder.generate(16, 0, dashes=dashes)) > 0).sum() > (pictures(plain) > 0).sum()


def test_long_paths_start_near_the_middle() -> None:
    """And with as much as they turn, their ends are nearer than their length."""
    images, labels = pathfinder.draw(0, 64, 0, dashes=9, distractors=0)
    apart = [np.hypot(*np.subtract(*discs(image.reshape(32, 32)))) for image in images[labels == 1]]
    assert max(apart) < 9 * 4
    assert np.mean(apart) < 0.7 * 9 * 4


def publish(folder: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """A folder as the Long Range Arena has it: images, and lines of text that are called .npy."""
    for part in ("0", "1"):
        (folder / "imgs" / part).mkdir(parents=True)
        (folder / "metadata").mkdir(exist_ok=True)
        lines = []
        for i in range(int(part), len(images), 2):
            Image.fromarray(images[i]).save(folder / "imgs" / part / f"sample_{i}.png")
            lines.append(f"imgs/{part} sample_{i}.png {i} {labels[i]} 0 6 3 2.0\n")
        (folder / "metadata" / f"{part}.npy").write_text("".join(lines))
    return folder


def test_published_folder(tmp_path: Path, made: pathfinder.TokenSet) -> None:
    folder = publish(tmp_path / "curv_baseline", pictures(made)[:10], made.labels)
    (folder / "imgs" / "0" / "sample_4.png").write_bytes(b"")
    found, empty = read_pathfinder(folder)
    order = [0, 2, 6, 8, 1, 3, 5, 7, 9]
    assert empty == 1
    assert found.labels.tolist() == made.labels[order].tolist()
    assert (pictures(found) == pictures(made)[order]).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("imgs/0 sample_0.png 0 2", "label, 0 or 1"),
        ("imgs/0 sample_0.png", "label, 0 or 1"),
        ("../../etc passwd 0 1", "does not name an image"),
        ("/etc passwd 0 1", "does not name an image"),
        ("imgs/0 /etc/passwd.png 0 1", "does not name an image"),
        ("imgs/0 ../../../etc/passwd.png 0 1", "does not name an image"),
        ("imgs/0 gone.png 0 1", "no such image"),
        (f"imgs/0 {'x' * 300}.png 0 1", "cannot be read as an image"),
    ],
)
def test_bad_metadata(tmp_path: Path, made: pathfinder.TokenSet, line: str, message: str) -> None:
    folder = publish(tmp_path / "x", pictures(made)[:2], made.labels)
    path = folder / "metadata" / "0.npy"
    path.write_text(f"\n{path.read_text()}{line}\n")
    with pytest.raises(FileError, match=rf"^{path}, line 3: .*{message}"):
        read_pathfinder(folder)


def test_blank_lines_are_left_alone(tmp_path: Path, made: pathfinder.TokenSet) -> None:
    folder = publish(tmp_path / "x", pictures(made)[:4], made.labels)
    path = folder / "metadata" / "1.npy"
    path.write_text("\n" + path.read_text().replace("\n", "\n \n") + "\n")
    found, empty = read_pathfinder(folder)
    assert empty == 0
    assert (pictures(found) == pictures(made)[[0, 2, 1, 3]]).all()


def test_two_dots_in_a_name_stay_in_the_folder(tmp_path: Path, made: pathfinder.TokenSet) -> None:
    folder = publish(tmp_path / "x", pictures(made)[:1], made.labels)
    (folder / "imgs/0/sample_0.png").rename(folder / "imgs/0/sample..0.png")
    (folder / "metadata" / "0.npy").write_text(f"imgs/0 sample..0.png 0 {made.labels[0]} 0 6 3 2.0\n")
    assert (pictures(read_pathfinder(folder)[0]) == pictures(made)[:1]).all()


def test_lists_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "0.npy").write_text("\n\n")
    with pytest.raises(FileError, match=f"^{tmp_path}: no examples in train"):
        open_splits(Data(name="pathfinder", path=str(tmp_path)))


def test_other_folders(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"metadata: .*pathfinder32"):
        open_splits(Data(name="pathfinder", path=str(tmp_path)))
    (tmp_path / "metadata").mkdir()
    np.save(tmp_path / "metadata" / "0.npy", np.arange(3))
    with pytest.raises(FileError, match=r"line 1: .*does not name an image"):
        read_pathfinder(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
def test_processes_that_draw_end_with_the_one_that_started_them() -> None:
    text = "from sightline.tasks.sequences import pathfinder; pathfinder.generate(10**6, 0, workers=2)"
    started = subprocess.Popen([sys.executable, "-c", text], env=ENVIRONMENT)
    listed = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    try:
        children = wait_for(lambda: len(found := listed.read_text().split()) == 2 and found)
    finally:
        started.kill()
        started.wait()
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def wait_for(condition: Callable[[], Any]) -> Any:
    """What a condition gives once it holds."""
    for _ in range(600):
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it never came true")
