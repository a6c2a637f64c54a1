"""Cold starts: the first call, a new resolution, recompilation; and whether the batch changes an image's result.

`python -m sightline.bench.cold_start TASK` is the fresh process that makes the first calls. TASK is JSON; the process
prints one line of JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from sightline.bench.cases import OpCase
from sightline.bench.operators import Function, Operands, candidates, make_operands, operator_of, with_gradients
from sightline.bench.precision import DTYPES
from sightline.bench.results import Finding
from sightline.layers.spec import Spec
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
COMPOSED = OpCase("224", 6, 6, 32, (14, 14), 1)
COMPOSED_LONG = OpCase("1024", 3, 6, 32, (64, 64), 1)
TIMEOUT_S = 300


@dataclass(frozen=True)
class Seen:
    """Seconds of the first call, extra milliseconds of each new size, Triton kernels compiled for new sizes, graphs
    that torch.compile made for all sizes."""

    first_s: float
    extra_ms: list[float]
    new_kernels: int
    graphs: int


def measure_cold_start(
    mechanism: str, dtype: str, device: torch.device, shapes: Sequence[OpCase] = SHAPES
) -> list[Finding]:
    """All findings for a mechanism; separate processes with empty caches make the first calls."""
    found = []
    for mode in ("forward", "forward+backward"):
        found += first_calls(mechanism, mode, dtype, device, shapes)
    for case in (COMPOSED, COMPOSED_LONG):
        found += composition(mechanism, case, dtype, device)
    return found


def first_calls(
    mechanism: str, mode: str, dtype: str, device: torch.device, shapes: Sequence[OpCase] = SHAPES
) -> list[Finding]:
    """The first call of a fresh process and of every new resolution in it, next to a warm call; what was compiled.

    Raises:
        RunError: the process failed.
    """
    given = [asdict(case) for case in shapes]
    task = {"mechanism": mechanism, "mode": mode, "dtype": dtype, "device": str(device), "shapes": given}
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-m", "sightline.bench.cold_start", json.dumps(task)]
        env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"the process for first calls of {mechanism} failed: {reason}")
    seen = Seen(**json.loads(done.stdout.strip().splitlines()[-1]))
    what = f"{mechanism} {mode} {dtype}"
    found = [Finding(f"{what}: first call", seen.first_s, "s", FIRST_CALL_S, f"{shapes[0].tokens} tokens")]
    for case, extra_ms in zip(shapes[1:], seen.extra_ms, strict=True):
        found.append(Finding(f"{what}: new size {case.name}", extra_ms, "ms", NEW_SIZE_MS, "more than a warm call"))
    note = f"torch.compile(dynamic=True) over {len(shapes)} sizes: one for the first, one for all others"
    return [
        *found,
        Finding(f"{what}: kernels compiled for new sizes", seen.new_kernels, "kernels", 0),
        Finding(f"{what}: graphs compiled", seen.graphs, "graphs", 2, note),
    ]


def composition(mechanism: str, case: OpCase, dtype: str, device: torch.device) -> list[Finding]:
    """Count the ways to batch images that change the bits of an output or gradient; should be none.

    Every image alone, all in reverse order, and all but the last.
    """
    candidate = candidates(mechanism, device)[0]
    run = with_gradients(operator_of(candidate, case, device))
    x = make_operands(case, Spec.parse(mechanism), DTYPES[dtype], device, 0)
    whole = run(x)
    everyone = list(range(case.batch))
    batches = [[i] for i in everyone] + [everyone[::-1], everyone[:-1]]
    different = sum(not _same(run(_pick(x, batch)), whole, batch) for batch in batches)
    name = f"{mechanism} {dtype} {case.name}: batches that change the bits of an image"
    return [Finding(name, different, f"of {len(batches)}", 0, candidate.name)]


def _pick(x: Operands, batch: Sequence[int]) -> Operands:
    """Some images of the operands, with the same memory layout."""
    packed = torch.stack([x.q.detach()[batch], x.k.detach()[batch], x.v.detach()[batch]], 2)
    q, k, v = (part.requires_grad_() for part in packed.unbind(2))
    extra = {name: t.detach()[batch].requires_grad_() for name, t in x.extra.items()}
    return Operands(q, k, v, extra, x.grad[batch], x.case, x.grid)


def _same(got: Sequence[Tensor | None], whole: Sequence[Tensor | None], batch: Sequence[int]) -> bool:
    pairs = [(a, b) for a, b in zip(got, whole, strict=True) if a is not None and b is not None]
    return all(torch.equal(a, b[batch]) for a, b in pairs)


def first_process(mechanism: str, mode: str, dtype: str, device: torch.device, cases: Sequence[OpCase]) -> Seen:
    """Call every shape once cold and a few times warm, in order."""
    spec, candidate = Spec.parse(mechanism), candidates(mechanism, device)[0]
    inputs = [make_operands(case, spec, DTYPES[dtype], device, 0) for case in cases]

    def calls(wrap: Callable[[Function], Function] = lambda function: function) -> list[Callable[[], object]]:
        function = wrap(operator_of(candidate, cases[0], device))
        run: Callable[[Operands], object] = function if mode == "forward" else with_gradients(function)
        return [lambda x=x: run(x) for x in inputs]  # type: ignore[misc]

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    with torch.set_grad_enabled(mode != "forward"):
        # Starting the GPU (context, matrix library) is not part of any candidate's first call.
        seconds(lambda: torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device))
        plain = calls()
        first = seconds(plain[0])
        for _ in range(3):
            seconds(plain[0])
        before, extra = _kernels(), []
        for call in plain[1:]:
            cold = seconds(call)
            extra.append((cold - statistics.median(seconds(call) for _ in range(3))) * 1e3)
        new = _kernels() - before
        return Seen(first, extra, new, _count_graphs(calls))


def _kernels() -> int:
    """Compiled Triton kernels in the cache folder, which was empty when the process started."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR", ""))
    return len({path.parent for path in folder.rglob("*.ttir")}) if folder.is_dir() else 0


def _count_graphs(calls: Callable[[Callable[[Function], Function]], list[Callable[[], object]]]) -> int:
    """Graphs that torch.compile traces for all sizes together, independent of the compiler behind it."""
    from torch._dynamo.utils import counters

    counters.clear()
    for call in calls(lambda function: torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)):
        call()
    return int(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    shapes = [OpCase(**{**case, "grid": tuple(case["grid"])}) for case in task["shapes"]]
    seen = first_process(task["mechanism"], task["mode"], task["dtype"], torch.device(task["device"]), shapes)
    print(json.dumps(asdict(seen)))
