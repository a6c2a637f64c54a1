"""A fresh process that calls an operator for the first time: `python -m sightline.bench.probe TASK`, TASK as JSON.

Prints one line of JSON: seconds of the first call, the milliseconds that each new resolution takes more than a warm
call, the Triton kernels that these compiled, and the graphs that torch.compile made for all of them.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sightline.bench.cases import OpCase
from sightline.bench.operators import entrants, make_operands, operator_of, with_gradients
from sightline.bench.precision import DTYPES
from sightline.layers.spec import Spec


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Call every shape once cold and a few times warm, in order."""
    device = torch.device(task["device"])
    spec = Spec.parse(task["mechanism"])
    entrant = entrants(task["mechanism"], device)[0]
    cases = [OpCase(**{**case, "grid": tuple(case["grid"])}) for case in task["shapes"]]
    inputs = [make_operands(case, spec, DTYPES[task["dtype"]], device, 0) for case in cases]

    def calls(wrap: Callable[..., Any] = lambda function: function) -> list[Callable[[], Any]]:
        function = wrap(operator_of(entrant, cases[0], device))
        both = with_gradients(function) if task["mode"] != "forward" else function
        return [lambda x=x: both(x) for x in inputs]  # type: ignore[misc]

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    with torch.set_grad_enabled(task["mode"] != "forward"):
        # The card's own start (context, matrix library) is nobody's first call.
        seconds(lambda: torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device))
        plain = calls()
        first = seconds(plain[0])
        for _ in range(3):
            seconds(plain[0])
        before, extra = kernels(), []
        for call in plain[1:]:
            cold = seconds(call)
            extra.append((cold - statistics.median(seconds(call) for _ in range(3))) * 1e3)
        new = kernels() - before
        graphs = count_graphs(calls) if task.get("compile", True) else None
    return {"first_s": first, "extra_ms": extra, "new_kernels": new, "graphs": graphs}


def kernels() -> int:
    """Compiled Triton kernels in the cache folder, which was empty when the process began."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR", ""))
    return len({path.parent for path in folder.rglob("*.ttir")}) if folder.is_dir() else 0


def count_graphs(calls: Callable[..., list[Callable[[], Any]]]) -> int | None:
    """Graphs that torch.compile traces for all sizes together: the number of compilations, whatever compiles them."""
    from torch._dynamo.utils import counters

    counters.clear()
    for call in calls(lambda function: torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)):
        call()
    return int(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
