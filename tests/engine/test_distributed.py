"""Several processes over gloo: the same run as one process, every image counted once, nobody left waiting."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from sightline.engine.distributed import make_accelerator
from sightline.tasks.config import Run
from sightline.util.errors import InputError
from tests.engine import warm
from tests.engine.tiny import ENVIRONMENT, command, make_images, metrics, run, write_recipe
from tests.engine.warm import Warm

EXACT = {"batch": {"size": 16}, "model": {"drop_path": 0.0}, "augment": {"erase": 0.0}}
# Its launcher for several processes on a CPU would be MPI; that for GPUs is torchrun, here without a GPU.
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines=1", "--mixed_precision=no",
              "--dynamo_backend=no")  # fmt: skip
pytestmark = pytest.mark.xdist_group("processes")  # one server that forks; the run of one process is made once


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a recipe and the outcome of one process."""
    folder = tmp_path_factory.mktemp("distributed")
    make_images(folder / "images", train=16, val=5)
    write_recipe(folder / "recipe.yaml", **{k: {**v} for k, v in EXACT.items()})
    done = warm.run(command(folder / "recipe.yaml", folder / "images", folder / "one")[3:])
    assert done.returncode == 0, done.stderr
    return folder


def start(arguments: list[str], processes: int, port: int, before: Callable[[], None] | None = None) -> list[Warm]:
    """Processes of one group that no launcher looks after."""
    shared = {**ENVIRONMENT, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return [Warm(arguments, before=before, environment={**shared, **rank}) for rank in ranks]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "launched"), [(4, False), (2, True)])
def test_same_losses_and_every_image_once(place: Path, processes: int, launched: bool) -> None:
    out = place / f"{processes}"
    python, *words = command(place / "recipe.yaml", place / "images", out)
    if launched:
        done = run([python, *ACCELERATE, "--num_processes", str(processes), "--main_process_port", "29602", *words])
        assert done.returncode == 0, done.stderr
    else:
        for process in start(words[2:], processes, 29604):
            _, errors = process.communicate()
            assert process.returncode == 0, errors
    assert json.loads((out / "versions.json").read_text())["device"].startswith(f"{processes} x cpu")
    for one, many in zip(metrics(place / "one"), metrics(out), strict=True):
        assert many["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
        assert many["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)
        assert many["top1"] == one["top1"]
        assert many["lr"] == one["lr"]
    assert (out / "confusion.json").read_text() == (place / "one/confusion.json").read_text()


def trace_only() -> None:
    """Let torch.compile trace models and run what it traced; to generate code would take a minute."""
    compile = nn.Module.compile
    nn.Module.compile = lambda self, mode, dynamic: compile(self, backend="eager", dynamic=dynamic)  # type: ignore


@pytest.mark.slow
def test_compiled_models_train_in_several_processes(place: Path) -> None:
    out = place / "compiled"
    arguments = command(place / "recipe.yaml", place / "images", out, "--model.compile", "true")[3:]
    for rank, process in enumerate(start(arguments, 2, 29651, trace_only)):
        written, errors = process.communicate()
        assert process.returncode == 0, errors
        assert written.count("torch.compile without CUDA graphs, in 2 processes") == (rank == 0)
        assert "failed" not in written
    for one, two in zip(metrics(place / "one"), metrics(out), strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
        assert two["top1"] == one["top1"]


def begin(place: Path, name: str, port: int) -> tuple[Path, list[Warm]]:
    """Two processes, once they train."""
    out = place / name
    long = command(place / "recipe.yaml", place / "images", out, "--schedule.epochs", "2000", "--run.save_steps", "2",
                   "--run.eval_every", "1000", "--run.timeout", "60")[3:]  # fmt: skip
    started = start(long, 2, port)
    deadline = time.monotonic() + 240
    while not (out / "checkpoints/previous/manifest.json").exists():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in started), started[0].communicate()[1]
        time.sleep(0.05)
    return out, started


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1])
def test_a_killed_process_ends_the_others_with_a_message(place: Path, victim: int) -> None:
    out, started = begin(place, "lost", 29641)
    os.kill(started[victim].pid, signal.SIGKILL)
    other = started[1 - victim]
    _, errors = other.communicate()
    started[victim].communicate()
    assert other.returncode == 1, errors
    assert f"rank {1 - victim}: another process of the run ended" in errors
    assert (out / "checkpoints/last/manifest.json").exists()


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all_and_saves(place: Path) -> None:
    out, started = begin(place, "stopped", 29642)
    started[1].terminate()
    results = [(process.communicate(), process.returncode) for process in started]
    assert [code for _, code in results] == [75, 75], results
    assert "and saved at step" in results[0][0][1]
    assert (out / "checkpoints/last/manifest.json").exists()


def test_more_processes_than_gpus_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(InputError, match=r"run\.device: 4 processes for 1 GPU"):
        make_accelerator(Run())
