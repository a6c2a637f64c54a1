"""Cold starts: the first call, a new resolution, recompilation; and whether the batch changes an image's result.

`python -m sightline.bench.cold_start MECHANISM MODE DTYPE DEVICE NAME=SHAPE ...` is the fresh process that makes the
first calls. It prints its findings as one line of JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from sightline.bench.candidates import DTYPES
from sightline.bench.cases import OpCase, parse_shape
from sightline.bench.operators import Function, Operands, implementations, make_operands, with_gradients
from sightline.bench.results import Finding
from sightline.util.errors import RunError

FIRST_CALL_S, NEW_SIZE_MS = 3.0, 50.0
# The first shape is called first; the others are new sizes in the same process.
SHAPES = (
    OpCase("224", 8, 6, 32, (14, 14), 1),
    OpCase("384x352", 8, 6, 32, (24, 22), 1),
    OpCase("640", 8, 6, 32, (40, 40), 1),
    OpCase("1024", 8, 6, 32, (64, 64), 1),
    OpCase("2048", 2, 6, 32, (128, 128), 1),
)
COMPOSED = (OpCase("224", 6, 6, 32, (14, 14), 1), OpCase("1024", 3, 6, 32, (64, 64), 1))
TIMEOUT_S = 300


@dataclass(frozen=True)
class ColdStart:
    """First calls of a mechanism in processes with empty caches, and batches of different compositions."""

    mechanism: str
    dtype: str
    shapes: Sequence[OpCase] = SHAPES

    def __str__(self) -> str:
        return f"{self.mechanism} {self.dtype} cold start"

    def run(self, device: torch.device) -> list[Finding]:
        """All findings; a failure is a finding too."""
        try:
            words = (self.dtype, str(device), *(f"{case.name}={case}" for case in self.shapes))
            found = [run_process(self.mechanism, mode, *words) for mode in ("forward", "forward+backward")]
            return [*found[0], *found[1], *(self.composition(case, device) for case in COMPOSED)]
        except Exception as error:
            note = " ".join(str(error).split())[:200]
            return [Finding(f"{self.mechanism} {self.dtype}: not measured", 1, "failure", 0, note)]

    def composition(self, case: OpCase, device: torch.device) -> Finding:
        """Count the ways to batch images that change the bits of an output or gradient; should be none.

        Every image alone, all in reverse order, and all but the last.
        """
        operator = implementations(self.mechanism, device)[0]
        run = with_gradients(operator.function(case, device, DTYPES[self.dtype]))
        x = make_operands(case, operator.spec, DTYPES[self.dtype], device, 0)
        whole = run(x)
        everyone = list(range(case.batch))
        batches = [[i] for i in everyone] + [everyone[::-1], everyone[:-1]]

        def changes(batch: list[int]) -> bool:
            pairs = zip(run(x.images(batch)), whole, strict=True)
            return any(got is not None and not torch.equal(got, want[batch]) for got, want in pairs)

        name = f"{self.mechanism} {self.dtype} {case.name}: batches that change the bits of an image"
        return Finding(name, sum(map(changes, batches)), f"of {len(batches)}", 0, operator.label)


def run_process(*words: str) -> list[Finding]:
    """The first calls of a fresh process with empty caches.

    Raises:
        RunError: the process failed.
    """
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-m", "sightline.bench.cold_start", *words]
        env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"the process for first calls of {words[0]} failed: {reason}")
    return [Finding(**item) for item in json.loads(done.stdout.strip().splitlines()[-1])]


def first_calls(mechanism: str, mode: str, dtype: str, device: torch.device, cases: Sequence[OpCase]) -> list[Finding]:
    """The first call of this process and of every new resolution, next to a warm call; what was compiled."""
    operator = implementations(mechanism, device)[0]
    function = operator.function(cases[0], device, DTYPES[dtype])
    inputs = [make_operands(case, operator.spec, DTYPES[dtype], device, 0) for case in cases]

    def calls(function: Function) -> list[Callable[[], object]]:
        run: Callable[[Operands], object] = function if mode == "forward" else with_gradients(function)
        return [partial(run, x) for x in inputs]

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    with torch.set_grad_enabled(mode != "forward"):
        # Starting the GPU (context, matrix library) is not part of any candidate's first call.
        seconds(lambda: torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device))
        plain = calls(function)
        first = seconds(plain[0])
        for _ in range(3):
            seconds(plain[0])
        before = _kernels()
        what, found = f"{mechanism} {mode} {dtype}", []
        for case, call in zip(cases[1:], plain[1:], strict=True):
            cold = seconds(call)
            extra_ms = (cold - statistics.median(seconds(call) for _ in range(3))) * 1e3
            found.append(Finding(f"{what}: new size {case.name}", extra_ms, "ms", NEW_SIZE_MS, "more than a warm call"))
        new = _kernels() - before
        graphs = _count_graphs(calls(torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)))
    note = f"torch.compile(dynamic=True) over {len(cases)} sizes: one for the first, one for all others"
    return [
        Finding(f"{what}: first call", first, "s", FIRST_CALL_S, f"{cases[0].tokens} tokens"),
        *found,
        Finding(f"{what}: kernels compiled for new sizes", new, "kernels", 0),
        Finding(f"{what}: graphs compiled", graphs, "graphs", 2, note),
    ]


def _kernels() -> int:
    """Compiled Triton kernels in the cache folder, which was empty when the process started."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR", ""))
    return len({path.parent for path in folder.rglob("*.ttir")}) if folder.is_dir() else 0


def _count_graphs(calls: Sequence[Callable[[], object]]) -> int:
    """Graphs that torch.compile traces for all calls together, independent of the compiler behind it."""
    from torch._dynamo.utils import counters

    counters.clear()
    for call in calls:
        call()
    return int(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    mechanism, mode, dtype, device, *shapes = sys.argv[1:]
    named = [text.partition("=") for text in shapes]
    cases = [replace(parse_shape(text), name=name) for name, _, text in named]
    found = first_calls(mechanism, mode, dtype, torch.device(device), cases)
    sys.stdout.write(json.dumps([asdict(item) for item in found]) + "\n")
