"""Several trainings at a time on one GPU: small models leave most of it idle.

Every process takes the next job when it is free and keeps the libraries and the decoded images of the last one. A job
that is in the file of results is not repeated, even if that was made on another machine; one that was interrupted
resumes from its run folder. Where NVIDIA's multi-process service (MPS) is installed, the kernels of all processes run
at the same time; without it the GPU serves one process after the other.
"""

import hashlib
import json
import multiprocessing as mp
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from queue import Empty
from typing import Any, NoReturn

from sightline.engine.signals import Stopped
from sightline.util.errors import FileError, InputError

Job = dict[str, Any]  # "name", and what `work` takes; JSON
Row = dict[str, Any]  # JSON
Work = Callable[[Job, Path], Row]  # job and its folder -> what is recorded; a function of a module
POLL = 1.0  # seconds
REPEAT = 10.0  # seconds between requests to stop a training
GRACE = 60.0  # seconds for trainings to save their state, then their processes are ended
MPS = "nvidia-cuda-mps-control"
MPS_PLACES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")  # where CUDA and the service look for it
START = "spawn"  # how processes start: CUDA does not outlive a fork
PLACES = ("data", "cache")  # keys of a job that say where its files are on this machine


def described(job: Job) -> Job:
    """A job without the places of its files."""
    return {key: value for key, value in job.items() if key not in PLACES}


def key_of(job: Job) -> str:
    """A short name that two different jobs do not share, the same on all machines."""
    digest = hashlib.sha256(json.dumps(described(job), sort_keys=True).encode()).hexdigest()[:10]
    return f"{''.join(c if c.isalnum() else '_' for c in job['name'])[:60]}-{digest}"


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of results; a last line that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def run_jobs(
    jobs: Sequence[Job], work: Work, out: Path, folder: Path, processes: int, seconds: float, job_seconds: float
) -> list[Row]:
    """Do all jobs that `out` has no row of, and return the rows of all jobs that are done.

    Args:
        jobs: in the order in which they are started.
        work: does a job.
        out: one line of JSON per job.
        folder: for the folders of the jobs and the log of every process.
        processes: at a time.
        seconds: no job starts, and those that run are stopped and saved, after this time.
        job_seconds: the same for a single job.
    """
    done = {row["key"] for row in read_rows(out) if "error" not in row}
    waiting = [job for job in jobs if key_of(job) not in done]
    context, end = mp.get_context(START), time.time() + seconds
    todo, finished = context.Queue(), context.Queue()
    for job in waiting:
        todo.put(job)
    for path in (folder, out.parent):
        path.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of every process
    workers = [
        context.Process(target=_serve, args=(work, todo, finished, folder, number, end, job_seconds))
        for number in range(min(processes, len(waiting)))
    ]
    left = len(waiting)
    with out.open("a") as file, _concurrent_kernels(len(workers)), _ending(workers, todo):
        for worker in workers:
            worker.start()
        while left and (not finished.empty() or any(worker.is_alive() for worker in workers)):
            try:
                row = finished.get(timeout=POLL)
            except Empty:
                if time.time() < end + GRACE:
                    continue
                print(f"{left} left; those that run do not stop and are ended", flush=True)
                for worker in workers:
                    worker.kill()
                break
            left -= 1
            told = row.get("stopped") or row.get("error") or row.get("top1")
            print(f"{row['name']}: {told} in {row['seconds']:.0f} s; {left} left", flush=True)
            if "stopped" not in row:
                file.write(json.dumps(row) + "\n")
                file.flush()
    wanted = {key_of(job) for job in jobs}
    return [row for row in read_rows(out) if row["key"] in wanted and "error" not in row]


def finish(main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its status; what cannot be read or used is one line and status 2."""
    try:
        sys.exit(main())
    except (OSError, InputError, FileError) as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        sys.exit(2)


def command_line() -> str:
    """The command that is running, without the folders of this machine."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", f"tools/{Path(sys.argv[0]).name}", *words])


@contextmanager
def _concurrent_kernels(processes: int) -> Iterator[None]:
    """Have the kernels of several processes run at the same time, with MPS if it is installed and works."""
    if processes < 2 or not shutil.which(MPS) or MPS_PLACES[0] in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as ending:
        os.environ.update(dict.fromkeys(MPS_PLACES, folder))
        ending.callback(_end_mps)
        works = _succeeds([MPS, "-d"]) and _succeeds([sys.executable, "-c", "import torch; torch.zeros(1).cuda()"])
        print("MPS shares the GPU" if works else "MPS does not work here", flush=True)
        if not works:
            ending.close()
        yield


def _end_mps() -> None:
    _succeeds([MPS], "quit\n")
    for name in MPS_PLACES:
        del os.environ[name]


def _succeeds(command: Sequence[str], lines: str = "") -> bool:
    """Run a command that is quiet and takes seconds; whether it ended well."""
    try:
        return not subprocess.run(command, input=lines, text=True, capture_output=True, timeout=120).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def _ending(workers: Sequence[Any], todo: Any) -> Iterator[None]:
    """Wait for the workers at the end; if this process is told to end, they save their training and end too."""

    def stop(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        with suppress(Empty):
            while True:
                todo.get_nowait()
        for worker in workers:
            worker.terminate()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        for worker in workers:
            worker.join()


def _serve(work: Work, todo: Any, finished: Any, folder: Path, number: int, end: float, job_seconds: float) -> None:
    with (folder / f"process_{number}.log").open("a", buffering=1) as log, redirect_stdout(log):
        os.dup2(log.fileno(), sys.stderr.fileno())
        while (left := end - time.time()) > 0:
            try:
                job = todo.get(timeout=POLL)
            except Empty:
                return
            key, start = key_of(job), time.time()
            row: Row = {"key": key, "name": job["name"], "job": described(job)}
            try:
                with _limit(min(left, job_seconds)):
                    row |= work(job, folder / key)
                shutil.rmtree(folder / key / "checkpoints", ignore_errors=True)
            except (Stopped, TimeoutError) as stop:
                row["stopped"] = str(stop)
            except Exception as error:  # whatever it is, the other jobs go on
                row["error"] = f"{type(error).__name__}: {error}"[:300]
            finished.put(row | {"seconds": round(time.time() - start, 1)})


@contextmanager
def _limit(seconds: float) -> Any:
    """Ask a training for its end after `seconds`, and again later, as SIGUSR1 does: it saves its state and raises."""

    def stop(*_: object) -> None:
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:  # nothing is trained
            raise TimeoutError("no time left")
        os.kill(os.getpid(), signal.SIGUSR1)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1), REPEAT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
