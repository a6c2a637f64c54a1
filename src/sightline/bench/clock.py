"""Time and memory of calls. All candidates of a case take turns, so that drift affects them equally.

Plain calls are timed by wall clock until the last one is done, on CUDA also by replay of a CUDA graph, which leaves out
launch overhead; of operators and modules also the time that the host takes.
`triton.testing.do_bench` times one function at a time and needs CUDA; it can neither interleave candidates nor rotate
inputs inside a graph, so this is our own.
"""

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from sightline.bench.results import FAILED, NO_MEMORY, OK
from sightline.util.errors import is_out_of_memory

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

Call = Callable[[], object]
Clock = Callable[[Call, int], float]  # milliseconds per call, over some calls
MIN_ROUNDS, MAX_ROUNDS = 3, 7
WARM_UP_MS = 50.0
PLAIN_WARM_UP_MS = 1000.0  # where plain calls are compared: the host must be warm too
PLAIN_ROUNDS = 21  # the time of the host differs by half from round to round on some machines
PLAIN_CALLS = 5  # in a round, at least, so that the host can run ahead of the GPU as in a loop
HOST_ROUNDS, HOST_CALLS = 15, 20  # few calls in a round: a full queue of the GPU would make the host wait
GRAPH_MS = 2.0  # work in a graph, at least, so that the gap between replays does not count
MAX_CALLS_IN_GRAPH = 64


@dataclass(frozen=True)
class Work:
    """A candidate's work: one call per set of inputs, the bytes it holds before it is called, and its error.

    `waits` is for a caller that waits for the result of every call, `graphs` for calls that use CUDA graphs themselves.
    """

    calls: Sequence[Call]
    held_bytes: int = 0
    error: float = 0.0
    waits: bool = False
    graphs: bool = False


@dataclass
class Timing:
    """Milliseconds per call, or why there are none; `spread` is (longest - shortest) / median over the rounds."""

    status: str = OK
    note: str = ""
    graph_ms: float | None = None
    call_ms: float | None = None
    host_ms: float | None = None
    spread: float | None = None
    memory_mib: float | None = None

    @property
    def ms(self) -> float | None:
        """The time to compare by: graph replay if there is one, otherwise plain calls."""
        return self.call_ms if self.graph_ms is None else self.graph_ms


def explain(error: BaseException) -> Timing:
    """Describe an exception during a measurement in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or is_out_of_memory(text)
    return Timing(NO_MEMORY if no_memory else FAILED, text[:200])


@contextmanager
def measuring(device: torch.device) -> Iterator[None]:
    """Create inputs, warm up, capture and time on one side stream on CUDA, as graphs need it.

    Autograd remembers the stream that a leaf was first used on; a capture on another one would be invalid.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(_side_stream(device)):
        yield
    torch.cuda.synchronize(device)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def measure(
    works: Mapping[str, Work], device: torch.device, budget_ms: float, plain: bool = False, host: bool = False
) -> dict[str, Timing]:
    """Time all candidates, by name; one that fails does not keep the others from being measured.

    Args:
        works: the candidates.
        device: where they run. Call within `measuring`.
        budget_ms: spent on each candidate after warm-up, and again for graph replay on CUDA.
        plain: plain calls are what is compared: a longer warm-up, more rounds and more calls in each.
        host: also measure the time that the host takes.
    """
    cuda = device.type == "cuda"
    timings = {name: Timing() for name in works}
    plans: dict[str, tuple[Call, float]] = {}
    graphs: dict[str, tuple[Call, float]] = {}
    warm_up_ms = PLAIN_WARM_UP_MS if plain else WARM_UP_MS
    # Captures come before other candidates record graphs of their own.
    for own_graphs in (False, True):
        for name, work in works.items():
            if work.graphs == own_graphs:
                try:
                    plans[name] = _ready(work, timings[name], device, warm_up_ms)
                except Exception as error:
                    timings[name] = explain(error)
                    if cuda:
                        _release()
        if cuda and not own_graphs:
            graphs = _time_graphs(works, plans, timings, device, budget_ms)
    least, calls = MIN_ROUNDS, 1
    if plain:
        least, calls = (PLAIN_ROUNDS, PLAIN_CALLS) if cuda else (MAX_ROUNDS, 1)
    for name, times in _in_turns(plans, _wall_ms, budget_ms, least, calls, timings).items():
        timing = timings[name]
        timing.call_ms = statistics.median(times)
        timing.spread = _spread(times) if plain or timing.spread is None else timing.spread
    if host:
        for name, times in _host_times(plans, budget_ms).items():
            timings[name].host_ms = statistics.median(times)
    if cuda:
        graphs.clear()  # not earlier: plain calls would have to allocate their memory again
        _release()
    return timings


def _ready(work: Work, timing: Timing, device: torch.device, warm_up_ms: float) -> tuple[Call, float]:
    """The call to time, warmed up, and roughly how long it takes."""
    call = in_rotation(work.calls)
    if work.waits and device.type == "cuda":
        call = _waited(call)
    estimate = _warm_up(call, len(work.calls), warm_up_ms)
    if device.type == "cuda":
        timing.memory_mib = (_extra_bytes(call, device) + work.held_bytes) / 2**20
    return call, estimate


def _waited(call: Call) -> Call:
    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def in_rotation(calls: Sequence[Call]) -> Call:
    """A call that runs the next one of `calls` each time, so that no input stays in the cache."""
    following = itertools.cycle(calls)
    return lambda: next(following)()


def _time_graphs(
    works: Mapping[str, Work],
    plans: Mapping[str, tuple[Call, float]],
    timings: Mapping[str, Timing],
    device: torch.device,
    budget_ms: float,
) -> dict[str, tuple[Call, float]]:
    """Capture every candidate in a CUDA graph and time its replay; one that cannot be captured gets a note.

    Returns the graphs, which hold memory as long as they live.
    """
    graphs: dict[str, tuple[Call, float]] = {}
    calls_in_graph: dict[str, int] = {}
    pool = torch.cuda.graph_pool_handle()
    for name, (_, estimate) in plans.items():
        count = len(works[name].calls)
        repeats = max(1, min(MAX_CALLS_IN_GRAPH, round(GRAPH_MS / max(estimate, 1e-3))) // count)
        calls_in_graph[name] = repeats * count
        try:
            graphs[name] = _capture(works[name].calls, repeats, pool, device), estimate * calls_in_graph[name]
        except Exception as error:
            timings[name].note = f"no CUDA graph: {explain(error).note}"
            torch.cuda.synchronize(device)
    for name, times in _in_turns(graphs, _event_ms, budget_ms).items():
        timings[name].graph_ms = statistics.median(times) / calls_in_graph[name]
        timings[name].spread = _spread(times)
    return graphs


def _in_turns(
    plans: dict[str, tuple[Call, float]], clock: Clock, budget_ms: float, least: int = MIN_ROUNDS, calls: int = 1,
    timings: dict[str, Timing] | None = None,
) -> dict[str, list[float]]:  # fmt: skip
    """Milliseconds per call, several samples per plan, which is a call and roughly how long it takes.

    There are at least `least` rounds, with at least `calls` calls each. A plan that fails is removed, and noted in
    `timings`.
    """
    samples: dict[str, list[float]] = {name: [] for name in plans}
    rounds = {name: max(least, min(MAX_ROUNDS, int(budget_ms / max(ms, 1e-3)))) for name, (_, ms) in plans.items()}
    for turn in range(max(rounds.values(), default=0)):
        for name, (call, ms) in list(plans.items()):
            if turn < rounds[name]:
                count = max(calls, round(budget_ms / rounds[name] / max(ms, 1e-3)))
                try:
                    samples[name].append(clock(call, count))
                except Exception as error:
                    if timings is None:
                        raise
                    timings[name] = explain(error)
                    del plans[name], samples[name]
    return samples


def _host_times(plans: Mapping[str, tuple[Call, float]], budget_ms: float) -> dict[str, list[float]]:
    """Milliseconds per call until the host can go on, in turns."""
    samples: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(HOST_ROUNDS):
        for name, (call, ms) in plans.items():
            count = max(1, min(HOST_CALLS, round(budget_ms / max(ms, 1e-3))))
            samples[name].append(_wall_ms(call, count, wait=False))
    return samples


def _wall_ms(call: Call, count: int, wait: bool = True) -> float:
    """By the clock on the wall; `wait` includes what the GPU still has to do after the last call."""
    _finish()
    start = time.perf_counter()
    for _ in range(count):
        call()
    if wait:
        _finish()
    return (time.perf_counter() - start) * 1e3 / count


def _finish() -> None:
    """Wait for the GPU if it is in use."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _event_ms(call: Call, count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def _warm_up(call: Call, sets: int, least_ms: float) -> float:
    """Compile, fill caches, raise the clock rates; returns roughly how long a call takes."""
    _wall_ms(call, max(2, sets))
    end = time.perf_counter() + least_ms / 1e3
    estimate = _wall_ms(call, 1)
    while (left := (end - time.perf_counter()) * 1e3) > 0:
        estimate = _wall_ms(call, max(1, round(min(left, WARM_UP_MS) / max(estimate, 0.01))))
    return estimate


def _extra_bytes(call: Call, device: torch.device) -> int:
    """Peak GPU memory of a call beyond what was allocated before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _capture(calls: Sequence[Call], repeats: int, pool: "_POOL_HANDLE", device: torch.device) -> Call:
    """Capture all calls, `repeats` times over, in one CUDA graph; returns its replay.

    The results of one round stay alive during the capture, so that each set of inputs has its own outputs in memory.
    The graphs of a case share a pool: none of their results is ever read.
    """
    graph = torch.cuda.CUDAGraph()
    kept: list[object] = [None] * len(calls)
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
