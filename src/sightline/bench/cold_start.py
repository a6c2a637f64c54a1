"""What should not surprise: the first call, a new resolution, recompilation, and an image's neighbours in the batch."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from sightline.bench.cases import OpCase
from sightline.bench.operators import Operands, entrants, make_operands, operator_of, with_gradients
from sightline.bench.precision import DTYPES
from sightline.bench.results import Finding
from sightline.layers.spec import Spec

FIRST_CALL_S, NEW_SIZE_MS = 3.0, 50.0
# The first is called first; then the others, of sizes that were never seen.
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


def measure_surprises(
    mechanism: str, dtype: str, device: torch.device, shapes: Sequence[OpCase] = SHAPES
) -> list[Finding]:
    """All findings for a mechanism; a process of its own, with empty caches, makes the first calls."""
    found = []
    for mode in ("forward", "forward+backward"):
        found += first_calls(mechanism, mode, dtype, device, shapes)
    for case in (COMPOSED, COMPOSED_LONG):
        found += composition(mechanism, case, dtype, device)
    return found


def first_calls(
    mechanism: str, mode: str, dtype: str, device: torch.device, shapes: Sequence[OpCase] = SHAPES
) -> list[Finding]:
    """The first call of a fresh process, and of every new resolution in it, against a warm call; what was compiled.

    Raises:
        ValueError: the process failed.
    """
    task: dict[str, Any] = {"mechanism": mechanism, "mode": mode, "dtype": dtype, "device": str(device)}
    task["shapes"] = [asdict(case) for case in shapes]
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-m", "sightline.bench.probe", json.dumps(task)]
        env = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"the process for first calls of {mechanism} failed: {reason}")
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    what = f"{mechanism} {mode} {dtype}"
    first = Finding(f"{what}: first call", seen["first_s"], "s", FIRST_CALL_S, f"{shapes[0].tokens} tokens")
    found = [first]
    for case, extra_ms in zip(shapes[1:], seen["extra_ms"], strict=True):
        found.append(Finding(f"{what}: new size {case.name}", extra_ms, "ms", NEW_SIZE_MS, "more than a warm call"))
    found.append(Finding(f"{what}: kernels compiled for new sizes", seen["new_kernels"], "kernels", 0))
    if seen["graphs"] is not None:
        note = f"torch.compile(dynamic=True) over {len(shapes)} sizes: one for the first, one for all others"
        found.append(Finding(f"{what}: graphs compiled", seen["graphs"], "graphs", 2, note))
    return found


def composition(mechanism: str, case: OpCase, dtype: str, device: torch.device) -> list[Finding]:
    """In how many ways to put images into batches the bits of an output or gradient change; should be none.

    Every image alone, all in reverse order, and all but the last.
    """
    spec = Spec.parse(mechanism)
    entrant = entrants(mechanism, device)[0]
    run = with_gradients(operator_of(entrant, case, device))
    x = make_operands(case, spec, DTYPES[dtype], device, 0)
    whole = run(x)
    everyone = list(range(case.batch))
    batches = [[i] for i in everyone] + [everyone[::-1], everyone[:-1]]
    different = sum(not _same(run(_pick(x, batch)), whole, batch) for batch in batches)
    name = f"{mechanism} {dtype} {case.name}: batches that change the bits of an image"
    return [Finding(name, different, f"of {len(batches)}", 0, entrant.name)]


def _pick(x: Operands, batch: Sequence[int]) -> Operands:
    """Some images of the operands, packed as those are."""
    packed = torch.stack([x.q.detach()[batch], x.k.detach()[batch], x.v.detach()[batch]], 2)
    q, k, v = (part.requires_grad_() for part in packed.unbind(2))
    extra = {name: t.detach()[batch].requires_grad_() for name, t in x.extra.items()}
    return Operands(q, k, v, extra, x.grad[batch], x.case, x.place)


def _same(got: Sequence[torch.Tensor | None], whole: Sequence[torch.Tensor | None], batch: Sequence[int]) -> bool:
    pairs = [(a, b) for a, b in zip(got, whole, strict=True) if a is not None and b is not None]
    return all(torch.equal(a, b[batch]) for a, b in pairs)
