"""Nothing is lost: runs that are really killed, stopped, starved of disk or given damaged checkpoints."""

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.engine.tiny import command, make_images, metrics, weights, write_recipe
from tests.engine.warm import Warm, run

STEPWISE = ("--run.save_steps", "1", "--data.workers", "2")
# One server that forks, and one uninterrupted run for all.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a recipe and the outcome of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("survival")
    make_images(folder / "images", train=24)
    write_recipe(folder / "recipe.yaml", schedule={"epochs": 3, "warmup_epochs": 1})
    done = run(arguments(folder, folder / "whole"))
    assert done.returncode == 0, done.stderr
    return folder


def arguments(place: Path, out: Path, *more: str) -> list[str]:
    return command(place / "recipe.yaml", place / "images", out, *STEPWISE, *more)[3:]


def start(place: Path, out: Path, *more: str) -> Warm:
    return Warm(arguments(place, out, *more))


def step_of(out: Path) -> int:
    try:
        return int(json.loads((out / "checkpoints/last/manifest.json").read_text())["step"])
    except (OSError, ValueError):
        return 0


def wait_until(process: Warm, condition: Callable[[], bool]) -> bool:
    """Until a condition holds; false where the process ended before."""
    deadline = time.monotonic() + 240
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.002)
    return True


def wait_for(process: Warm, out: Path, step: int) -> bool:
    """Until the run has saved `step`; false where it ended before."""
    return wait_until(process, lambda: step_of(out) >= step)


def slowly(reached: Path) -> None:
    """Make reading the data last."""
    from sightline.engine import train as engine

    class Slow:
        def make(self, *_: object) -> None:
            reached.touch()
            time.sleep(1000)

    engine.TASKS = {"classification": Slow()}  # type: ignore[dict-item]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_at_once_while_data_are_read(place: Path, tmp_path: Path, number: signal.Signals) -> None:
    reached = tmp_path / "reached"
    process = Warm(arguments(place, tmp_path / "run"), before=partial(slowly, reached))
    assert wait_until(process, reached.exists)
    assert process.pid is not None
    os.kill(process.pid, number)
    _, errors = process.communicate()
    assert process.returncode == 75
    assert errors == f"sightline: stopped by {number.name} before the first update; run the same command again\n"


def same_as_uninterrupted(place: Path, out: Path) -> None:
    assert weights(out) == weights(place / "whole")
    assert metrics(out) == metrics(place / "whole")


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_weights(place: Path) -> None:
    out, luck, kills = place / "killed", random.Random(0), 0
    while True:
        process = start(place, out)
        if wait_for(process, out, step_of(out) + 5):  # in the middle of an epoch of nine updates
            time.sleep(luck.uniform(0, 0.05))  # anywhere in an update or a save
            os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        kills += 1
    assert kills >= 3
    same_as_uninterrupted(place, out)


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True])
def test_sigterm_saves_and_says_so(place: Path, whole_group: bool) -> None:
    out = place / f"stopped{whole_group}"
    process = start(place, out, "--run.save_steps", "1000")
    assert wait_until(process, (out / "config.yaml").exists)
    if whole_group:
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    assert "stopped by SIGTERM and saved at step" in errors
    assert errors.count("\n") == 1, errors
    done = run(arguments(place, out))
    assert "resuming from" in done.stdout
    same_as_uninterrupted(place, out)


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_a_reader_that_goes_away_stops_and_saves(place: Path, terminal: bool) -> None:
    """`sightline train | head -1`, and a terminal that is closed."""
    out = place / f"unread{terminal}"
    pipe = str(place / "pipe")
    os.mkfifo(pipe) if not terminal else None
    reading, writing = os.openpty() if terminal else (None, None)
    more = ("--run.log_every", "1")
    process = Warm(arguments(place, out, *more), stdout=pipe if writing is None else os.ttyname(writing))
    if reading is None:
        reading = os.open(pipe, os.O_RDONLY)
    os.read(reading, 1)
    for end in (writing, reading):
        if end is not None:
            os.close(end)
    _, errors = process.communicate()
    assert process.returncode == 75, errors
    assert ("an output that fails" if terminal else "stopped by a broken pipe and saved at step") in errors
    assert errors.count("\n") == 1, errors
    done = run(arguments(place, out))
    assert "resuming from" in done.stdout
    same_as_uninterrupted(place, out)


OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}


def before_changes(out: Path, act: Callable[[int], None]) -> None:
    """Call `act` with its number before every operation of this process that changes the run folder `out`."""
    done, acting = 0, False

    def watch(event: str, values: tuple[object, ...]) -> None:
        nonlocal done, acting
        if acting or event not in OPERATIONS or not str(path := values[0]).startswith(f"{out}"):
            return
        written = event != "open" or values[1] == "a" or ".lock" in str(path)
        temporary = event in ("open", "os.remove") and ".tmp" in str(path)
        made = event == "os.mkdir" and Path(str(path)).exists()
        if written and not temporary and not made:
            done, acting = done + 1, True
            act(done)
            acting = False

    sys.addaudithook(watch)


def die(out: Path, moment: int) -> None:
    """Kill this process before its change number `moment`."""
    before_changes(out, lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == moment else None)


def keep(out: Path, copies: Path) -> None:
    """Copy what the folder `out` holds before every change, which is what a process killed there would leave."""

    def copy(number: int) -> None:
        (copies / f"{number}").mkdir(parents=True)
        if out.exists():
            shutil.copytree(out, copies / f"{number}/run")

    before_changes(out, copy)


@pytest.mark.slow
def test_killed_before_every_change_of_a_file(place: Path) -> None:
    """Every line of the metrics is there once, and the last checkpoint is that of a run that was not killed.

    Every third run is really killed again while it resumes.
    """
    whole, copies = place / "unkilled", place / "moments"
    options = {"data.limit": 4, "batch.size": 6, "run.max_steps": 3, "run.save_steps": 9, "data.workers": 0}
    more = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    assert run(arguments(place, whole, *more), partial(keep, whole, copies)).returncode == 0
    assert [line["step"] for line in metrics(whole)] == [2, 3]
    moments, killed = len(list(copies.iterdir())), 0
    for moment in range(1, moments + 1):
        out = copies / f"{moment}/run"
        if moment % 3 == 0:
            killed += run(arguments(place, out, *more), partial(die, out, moment % 4 + 2)).returncode < 0
        done = run(arguments(place, out, *more))
        assert done.returncode == 0 or "is complete" in done.stderr, done.stderr
        assert metrics(out) == metrics(whole), moment
        assert weights(out) == weights(whole), moment
    assert moments > 24
    assert killed > 6


@pytest.mark.slow
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(place: Path) -> None:
    out = place / "damaged"
    process = start(place, out)
    assert wait_for(process, out, 12)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    newest = max((out / "checkpoints").iterdir(), key=lambda path: step_of_folder(path))
    file = newest / "state.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    done = run(arguments(place, out))
    assert done.returncode == 0, done.stderr
    assert f"{file}: damaged, its bytes are not those that were written" in done.stdout
    assert "resuming from" in done.stdout
    same_as_uninterrupted(place, out)


def step_of_folder(path: Path) -> int:
    try:
        return int(json.loads((path / "manifest.json").read_text())["step"])
    except (OSError, ValueError):
        return 0


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # the system's own «file too large»


@pytest.mark.slow
def test_full_disk_is_one_clear_line_and_the_last_checkpoint_stays(place: Path) -> None:
    out = place / "full"
    process = start(place, out)
    assert wait_for(process, out, 5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = weights(out)
    again = arguments(place, out)
    failed = run(again, before=partial(limit, (out / "checkpoints/last/state.safetensors").stat().st_size - 1000))
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr.startswith("sightline: ")
    assert "could not be written" in failed.stderr
    assert "the last checkpoint is intact" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert weights(out) == before
    assert not (out / "checkpoints/.new").exists()
    assert run(again).returncode == 0
    same_as_uninterrupted(place, out)


def test_two_runs_do_not_write_to_one_folder(place: Path) -> None:
    out = place / "shared"
    long = ("--schedule.epochs", "1000")
    first = start(place, out, *long)
    assert wait_for(first, out, 1)
    second = run(arguments(place, out, *long))
    first.kill()
    first.communicate()
    assert second.returncode == 2
    assert "another process is training in" in second.stderr


def test_a_complete_run_and_another_configuration_are_not_touched(place: Path) -> None:
    shutil.copytree(place / "whole", place / "copy")
    again = command(place / "recipe.yaml", place / "images", place / "copy")[3:]
    assert "is complete; choose another folder" in run(again).stderr
    (place / "copy/done.json").unlink()
    other = run([*again, "--optim.lr", "0.5"])
    assert other.returncode == 2
    assert "was started with another optim.lr" in other.stderr
    assert metrics(place / "copy") == metrics(place / "whole")
