"""Jobs side by side: every one once, in spite of failures and interruptions; the split that chooses recipes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import side_by_side

from sightline.engine.signals import Stopped

TRIALS = Path(side_by_side.__file__).parent / "trials"


def work(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a process does with a job of these tests."""
    if job["name"] == "bad":
        raise ValueError("no such thing")
    (folder / "checkpoints").mkdir(parents=True)
    return {"top1": job["number"]}


@pytest.fixture(autouse=True)
def _fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that need not import everything again."""
    monkeypatch.setattr(side_by_side, "START", "fork")


JOBS = [{"name": name, "number": number} for number, name in enumerate(["a", "b", "bad", "c"])]


def run(jobs: list[dict[str, Any]], tmp_path: Path, processes: int = 1, **limits: float) -> list[dict[str, Any]]:
    given = {"seconds": 60.0, "job_seconds": 60.0, **limits}
    return side_by_side.run_jobs(jobs, work, tmp_path / "out.jsonl", tmp_path / "runs", processes, **given)


def test_every_job_is_done_once(tmp_path: Path) -> None:
    rows = run(JOBS[:1], tmp_path)
    with (tmp_path / "out.jsonl").open("a") as file:
        file.write('{"key": "cut o')  # by a full disk
    (tmp_path / "out.jsonl").write_text((tmp_path / "out.jsonl").read_text() + "\n")
    rows = run(JOBS, tmp_path, processes=2)
    assert sorted(row["top1"] for row in rows) == [0, 1, 3]
    lines = side_by_side.read_rows(tmp_path / "out.jsonl")
    assert sorted(row["name"] for row in lines) == ["a", "b", "bad", "c"]
    assert [row["error"] for row in lines if row["name"] == "bad"] == ["ValueError: no such thing"]
    assert not list((tmp_path / "runs").glob("*/checkpoints"))


def test_names_of_jobs() -> None:
    one, other = ({"name": "a b", "changes": {"x": number}} for number in (1, 2))
    assert side_by_side.key_of(one) != side_by_side.key_of(other)
    assert side_by_side.key_of(one) == side_by_side.key_of(json.loads(json.dumps(one)))
    assert side_by_side.key_of(one).startswith("a_b-")
    assert side_by_side.key_of({**one, "data": "/here", "cache": "/there"}) == side_by_side.key_of(one)


def test_a_job_that_is_done_elsewhere_is_not_repeated(tmp_path: Path) -> None:
    here, there = ({**JOBS[0], "data": place} for place in ("/here", "/there"))
    assert run([here], tmp_path)[0]["job"] == JOBS[0]
    assert len(run([there], tmp_path)) == len(side_by_side.read_rows(tmp_path / "out.jsonl")) == 1


def stop(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    raise Stopped("resumes")


def test_a_job_that_was_stopped_has_no_row(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert side_by_side.run_jobs(JOBS[:1], stop, out, tmp_path / "runs", 1, 60, 60) == []
    assert side_by_side.read_rows(out) == []


def test_nothing_starts_when_the_time_is_over(tmp_path: Path) -> None:
    assert run(JOBS[:2], tmp_path, seconds=0.0) == []


def deaf(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    for number in (signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    return sleep(job, folder)


def late(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Work that does not hear of the first request to stop."""
    with suppress(TimeoutError):
        time.sleep(60)
    return sleep(job, folder)


@pytest.mark.parametrize(("work", "name", "value"), [(deaf, "GRACE", 0.0), (late, "REPEAT", 0.5)])
def test_a_job_that_does_not_stop(
    work: Any, name: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is ended, if asking it again does not help."""
    monkeypatch.setattr(side_by_side, name, value)
    start = time.time()
    assert side_by_side.run_jobs(JOBS[:1], work, tmp_path / "out.jsonl", tmp_path / "runs", 1, 1, 1) == []
    assert time.time() - start < 30


MPS_COMMAND = """#!/bin/sh
if [ "$1" = -d ]; then echo start >> {log}; exit {status}; fi
read line; echo "$line $CUDA_MPS_PIPE_DIRECTORY" >> {log}
"""


def environment(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    return {"top1": os.environ.get("CUDA_MPS_PIPE_DIRECTORY")}


@pytest.mark.parametrize(("starts", "works"), [(True, True), (True, False), (False, True)])
def test_kernels_of_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool, works: bool
) -> None:
    """MPS is started for them and ended, and not used if it does not start or torch does not work with it."""
    log, command = tmp_path / "log", tmp_path / "bin" / side_by_side.MPS
    command.parent.mkdir()
    command.write_text(MPS_COMMAND.format(log=log, status=int(not starts)))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    torch_works = "true" if works else "false"
    monkeypatch.setattr(sys, "executable", shutil.which(torch_works))
    (alone,) = side_by_side.run_jobs(JOBS[:1], environment, tmp_path / "a", tmp_path / "runs", 2, 60, 60)
    assert (alone["top1"], log.exists()) == (None, False)
    rows = side_by_side.run_jobs(JOBS[:2], environment, tmp_path / "out.jsonl", tmp_path / "runs", 2, 60, 60)
    places = {row["top1"] for row in rows}
    assert len(rows) == 2
    assert log.read_text().split()[0] == "start"
    assert (places != {None}) == (starts and works)
    assert log.read_text().splitlines()[-1].startswith("quit /")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def sleep(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / str(os.getpid())).touch()
    time.sleep(60)
    return {}


@pytest.mark.slow
def test_workers_end_with_the_command(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = {[str(TRIALS.parent), str(TRIALS.parents[1])]}\n"
        "from pathlib import Path\nfrom tests.tools import test_side_by_side as tests\n"
        f"if __name__ == '__main__':\n  folder = Path({str(tmp_path)!r})\n"
        "  tests.side_by_side.run_jobs(tests.JOBS, tests.sleep, folder / 'out.jsonl', folder / 'runs', 1, 60, 60)"
    )
    (tmp_path / "script.py").write_text(code)
    command = subprocess.Popen([sys.executable, str(tmp_path / "script.py")])
    while not (found := list(tmp_path.glob("runs/*/*"))):
        assert command.poll() is None
        time.sleep(0.1)
    command.terminate()
    assert command.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[0].name), 0)
    assert len(list(tmp_path.glob("runs/*/*"))) == 1


def test_a_fifth_of_the_training_images_is_held_out(tmp_path: Path) -> None:
    import search_recipes

    for name in ("x", "y"):
        (tmp_path / "data" / "train" / name).mkdir(parents=True)
        for number in range(100):
            (tmp_path / "data" / "train" / name / f"{name}{number}.jpg").write_text("")
    made = search_recipes.hold_out(tmp_path / "data", tmp_path / "split")
    train, val = ({path.name for path in (made / split).rglob("*.jpg")} for split in ("train", "val"))
    assert not train & val
    assert len(train | val) == 200
    assert 20 <= len(val) <= 60
    assert all(path.resolve().parent.parent == tmp_path / "data" / "train" for path in made.rglob("*.jpg"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["nothing.zip", "--final", "photos"], "nothing.zip"), ([".", "--final", "nope"], "no recipe 'nope'"),
     ([".", "--trials", "nope.yaml"], "nope.yaml"), (["."], "give --trials FILE or --final RECIPE"),
     (["text.zip", "--final", "photos"], "text.zip: not a zip file"),
     (["empty.zip", "--final", "photos"], "empty.zip: no folder train"),
     ([".", "--trials", "list.yaml"], "list.yaml"), ([".", "--trials", "half.yaml"], "half.yaml: not YAML"),
     ([".", "--trials", "none.yaml"], "trials"), ([".", "--trials", "typo.yaml"], "change")],
)  # fmt: skip
def test_one_line_for_bad_input(
    words: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import search_recipes

    monkeypatch.chdir(tmp_path)
    files = {"text.zip": "text", "list.yaml": "- 1", "half.yaml": "base: [", "none.yaml": "base: photos",
             "typo.yaml": "{base: photos, trials: {}, change: {}}"}  # fmt: skip
    for name, text in files.items():
        Path(name).write_text(text)
    ZipFile("empty.zip", "w").close()
    Path("train").mkdir()
    command = [*words, "--out", "x", "--work", str(tmp_path / "work")]
    with pytest.raises(SystemExit) as stopped:
        side_by_side.finish(lambda: search_recipes.main(command))
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_other_images_are_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the images are on this machine."""
    import search_recipes

    keys: list[str] = []
    monkeypatch.setattr(search_recipes, "run_jobs", lambda jobs, *_: keys.append(side_by_side.key_of(jobs[0])) or [])
    for folder in ("here/cats", "there/cats", "here/dogs"):
        (tmp_path / folder / "train").mkdir(parents=True)
        search_recipes.main([str(tmp_path / folder), "--final", "photos", "--out", "x", "--work", str(tmp_path)])
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("path", sorted(TRIALS.glob("*.yaml")), ids=lambda path: path.stem)
def test_trials_are_recipes(path: Path) -> None:
    import search_recipes

    from sightline.engine.settings import configure, load_recipe
    from sightline.models.weights.identify import build_empty

    for job in search_recipes.read_trials(str(path), 1, "x"):
        config = configure(load_recipe(job["recipe"]), {**search_recipes.QUIET, **job["changes"]})
        assert build_empty(config.model.name, dict(config.model.args)).num_classes == 1000
    assert yaml.safe_load(path.read_text())["trials"]
