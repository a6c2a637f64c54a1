"""Shared by the measuring scripts: timing by plain calls, peak memory, a time budget, and provenance."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sightline.engine.run_folder import versions
from sightline.util.provenance import source_commit

ROUNDS = 3
NOTHING = {"ms": None, "peak_mib": None}


def options_of(about: str | None, seconds: float, total: float) -> argparse.ArgumentParser:
    """The options of all scripts: output, device, time per case and in total."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file; by default only printed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=seconds, help="per case, after warm-up")
    parser.add_argument("--budget", type=float, default=total, help="seconds in total; each case gets its share")
    return parser


class Budget:
    """Time for a number of cases: each gets at most `seconds`, or an equal share of what is left of `total`."""

    def __init__(self, cases: int, seconds: float, total: float) -> None:
        self.cases, self.seconds = cases, seconds
        self.end = time.perf_counter() + total

    def share(self) -> float | None:
        """Seconds for the next case; None if no time is left."""
        self.cases -= 1
        left = self.end - time.perf_counter()
        return min(self.seconds, left / (self.cases + 1)) if left > 0 else None


def measure(call: Callable[[], Any], device: torch.device, seconds: float | None, warm: int = 1) -> dict[str, Any]:
    """Milliseconds per call, the median of some rounds, and the peak memory in MiB beyond what was allocated before.

    Args:
        call: what is measured.
        device: where it runs; memory is None on a CPU.
        seconds: for the timed calls, approximately; some calls are always timed. None skips the case.
        warm: calls before them.
    """
    if seconds is None:
        return {**NOTHING, "error": "no time left"}
    before = _held(device)
    try:
        _timed(call, device, warm)  # may compile for longer than there is time
        start = time.perf_counter()
        _reset_peak(device)
        first = _timed(call, device, 1)
        left = seconds - (time.perf_counter() - start)
        calls = max(1, int(left / first / ROUNDS))
        times = [_timed(call, device, calls) / calls for _ in range(ROUNDS)]
    except torch.OutOfMemoryError:
        return {**NOTHING, "error": "out of memory"}
    return {"ms": 1e3 * sorted(times)[len(times) // 2], "peak_mib": _peak(device, before)}


def write(path: str | None, script: str, rows: list[dict[str, Any]], device: torch.device, **facts: Any) -> None:
    """Write the rows with versions, machine and command, if `path` is given; each row with its commit."""
    if path is None:
        return
    rows = [{**row, "commit": row.get("commit", source_commit()[0])} for row in rows]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    given = [Path(word).name if word == path else word for word in sys.argv[1:]]
    made = {**versions(name), "command": " ".join(["python", f"tools/{Path(script).name}", *given])}
    Path(path).write_text(json.dumps({"versions": made, **facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def kept(path: str | None) -> list[dict[str, Any]]:
    """The rows that earlier calls wrote, each with its commit and the command that made it."""
    if path is None or not Path(path).exists():
        return []
    made = json.loads(Path(path).read_text())
    own = {key: made["versions"][key] for key in ("commit", "command")}
    return [{**own, **row} for row in made["rows"]]


def _timed(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    """Seconds of consecutive calls, until the last one is done."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _held(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device, before: int) -> float | None:
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20 if device.type == "cuda" else None
