"""Time, memory and what went wrong: all entrants of a case are measured in turns, so that drift hits them alike.

On a CPU by the wall clock. On CUDA twice: by replay of a CUDA graph, which leaves launches out, and by plain calls.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sightline.bench.results import FAILED, NO_MEMORY

Call = Callable[[], Any]
MIN_ROUNDS, MAX_ROUNDS = 3, 7
WARM_UP_MS = 50.0
GRAPH_MS = 2.0  # a graph holds at least so much work, so that the gap between replays does not count
MAX_CALLS_IN_GRAPH = 64


@dataclass(frozen=True)
class Work:
    """What an entrant does: one call for every set of inputs, and the bytes it holds before it is called."""

    calls: Sequence[Call]
    held_bytes: int = 0


@dataclass
class Timing:
    """Milliseconds a call; `spread` is (longest - shortest) / median over the rounds."""

    graph_ms: float | None = None
    call_ms: float | None = None
    spread: float | None = None
    memory_mib: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Failure:
    """Why there is no time: a status of `results`, and one line."""

    status: str
    note: str


Outcome = Timing | Failure


def explain(error: BaseException) -> Failure:
    """What an exception during a measurement means, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text
    return Failure(NO_MEMORY if no_memory else FAILED, text[:200])


@contextmanager
def measuring(device: torch.device) -> Iterator[None]:
    """Where inputs are made, warmed up, captured and timed: one side stream on CUDA, as graphs need it.

    Autograd remembers the stream that a leaf was first used on; a capture on another one would be invalid.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(_side_stream(device)):
        yield
    torch.cuda.synchronize(device)


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def measure(works: Mapping[str, Work], device: torch.device, budget_ms: float) -> dict[str, Outcome]:
    """The times of all entrants, by name; one that fails does not keep the others from being measured.

    `budget_ms` is spent on each entrant, after warm-up, and again for graph replay on CUDA. Call within `measuring`.
    """
    return _measure_cuda(works, device, budget_ms) if device.type == "cuda" else _measure_cpu(works, budget_ms)


def _measure_cpu(works: Mapping[str, Work], budget_ms: float) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    plans: dict[str, tuple[Call, float]] = {}
    for name, work in works.items():
        try:
            call = cycle(work.calls)
            plans[name] = call, _warm_up(call, len(work.calls), _wall_ms)
        except Exception as error:
            outcomes[name] = explain(error)
    samples = _in_turns(plans, _wall_ms, budget_ms)
    for name, times in samples.items():
        outcomes[name] = Timing(call_ms=statistics.median(times), spread=_spread(times))
    return outcomes


def _measure_cuda(works: Mapping[str, Work], device: torch.device, budget_ms: float) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    plans: dict[str, tuple[Call, float]] = {}
    graphs: dict[str, tuple[Call, float]] = {}
    calls_in_graph: dict[str, int] = {}
    pool = torch.cuda.graph_pool_handle()
    for name, work in works.items():
        try:
            call = cycle(work.calls)
            plans[name] = call, _warm_up(call, len(work.calls), _event_ms)
            outcomes[name] = Timing(memory_mib=(_extra_bytes(call, device) + work.held_bytes) / 2**20)
        except Exception as error:
            plans.pop(name, None)
            outcomes[name] = explain(error)
            _release()
    for name, (_, estimate) in plans.items():
        count = len(works[name].calls)
        repeats = max(1, min(MAX_CALLS_IN_GRAPH, round(GRAPH_MS / max(estimate, 1e-3))) // count)
        calls_in_graph[name] = repeats * count
        try:
            graphs[name] = _capture(works[name].calls, repeats, pool, device), estimate * calls_in_graph[name]
        except Exception as error:
            note_of(outcomes[name], f"no CUDA graph: {explain(error).note}")
            torch.cuda.synchronize(device)
    for name, times in _in_turns(graphs, _event_ms, budget_ms).items():
        timing = outcomes[name]
        assert isinstance(timing, Timing)
        timing.graph_ms, timing.spread = statistics.median(times) / calls_in_graph[name], _spread(times)
    for name, times in _in_turns(plans, _event_ms, budget_ms).items():
        timing = outcomes[name]
        assert isinstance(timing, Timing)
        timing.call_ms = statistics.median(times)
        timing.spread = _spread(times) if timing.spread is None else timing.spread
    graphs.clear()
    _release()
    return outcomes


def note_of(outcome: Outcome, note: str) -> None:
    """Remember what is worth knowing about a time."""
    if isinstance(outcome, Timing):
        outcome.note = note


def cycle(calls: Sequence[Call]) -> Call:
    """A call that does the next one of `calls` each time, so that no input stays in the cache."""
    state = {"next": 0}

    def step() -> Any:
        call = calls[state["next"] % len(calls)]
        state["next"] += 1
        return call()

    return step


def _in_turns(
    plans: Mapping[str, tuple[Call, float]], clock: Callable[[Call, int], float], budget_ms: float
) -> dict[str, list[float]]:
    """Milliseconds a call, several times for every plan, which is a call and about how long it takes."""
    samples: dict[str, list[float]] = {name: [] for name in plans}
    rounds = {name: int(min(MAX_ROUNDS, max(MIN_ROUNDS, budget_ms / max(ms, 1e-3)))) for name, (_, ms) in plans.items()}
    for turn in range(MAX_ROUNDS):
        for name, (call, ms) in plans.items():
            if turn < rounds[name]:
                count = max(1, round(budget_ms / rounds[name] / max(ms, 1e-3)))
                samples[name].append(clock(call, count))
    return samples


def _wall_ms(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) * 1e3 / count


def _event_ms(call: Call, count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def _warm_up(call: Call, sets: int, clock: Callable[[Call, int], float]) -> float:
    """Compile, fill caches, raise the clocks; returns about how long a call takes."""
    clock(call, max(2, sets))
    estimate = clock(call, 1)
    if estimate < WARM_UP_MS:
        estimate = clock(call, max(1, round(WARM_UP_MS / max(estimate, 0.01))))
    return estimate


def _extra_bytes(call: Call, device: torch.device) -> int:
    """What a call takes of the card's memory at most, besides what was in use before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _capture(calls: Sequence[Call], repeats: int, pool: Any, device: torch.device) -> Call:
    """A replay of all calls, `repeats` times over, as one CUDA graph.

    The results of one round stay alive during the capture, so that each set of inputs has outputs of its own in memory.
    Graphs of a case share a pool: none of their results is ever read.
    """
    graph = torch.cuda.CUDAGraph()
    kept: list[Any] = [None] * len(calls)
    with torch.cuda.graph(graph, pool=pool, stream=_side_stream(device)):
        for _ in range(repeats):
            for i, call in enumerate(calls):
                kept[i] = call()
    kept.clear()
    graph.replay()
    torch.cuda.synchronize(device)
    return graph.replay


def _spread(times: Sequence[float]) -> float:
    return (max(times) - min(times)) / statistics.median(times)


def _release() -> None:
    gc.collect()
    torch.cuda.empty_cache()
