"""Turns, budgets and failures; no test here depends on how fast anything is."""

import pytest
import torch

from sightline.bench import clock
from sightline.bench.clock import Timing, Work, explain, in_rotation, measure
from sightline.bench.results import FAILED, NO_MEMORY

CPU = torch.device("cpu")


def test_candidates_are_measured_in_turns() -> None:
    seen: list[str] = []
    plans = {name: ((lambda name=name: seen.append(name)), 10.0) for name in "ab"}
    samples = clock._in_turns(plans, lambda call, count: (call(), float(count))[1], 70.0)
    assert seen == list("ab") * 7
    assert samples == {"a": [1.0] * 7, "b": [1.0] * 7}


def test_slow_calls_get_fewer_rounds_and_fast_ones_many_calls() -> None:
    plans = {"slow": ((lambda: None), 1000.0), "fast": ((lambda: None), 0.1)}
    samples = clock._in_turns(plans, lambda call, count: float(count), 70.0)
    assert samples == {"slow": [1.0] * 3, "fast": [100.0] * 7}


def test_a_failure_does_not_stop_the_others() -> None:
    def broken() -> None:
        raise RuntimeError("no\nsuch kernel")

    works = {"bad": Work([broken]), "good": Work([lambda: None])}
    outcomes = measure(works, CPU, 1)
    assert outcomes["bad"] == Timing(FAILED, "no such kernel")
    good = outcomes["good"]
    assert good.call_ms is not None
    assert good.graph_ms is None


def test_a_failure_after_warm_up_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "PLAIN_WARM_UP_MS", 0.0)  # three calls
    left = iter(range(4))
    works = {"bad": Work([lambda: next(left)]), "good": Work([lambda: None])}
    outcomes = measure(works, CPU, 1, plain=True)
    assert (outcomes["bad"].status, outcomes["bad"].call_ms) == (FAILED, None)
    assert outcomes["good"].call_ms is not None


def test_calls_go_round() -> None:
    seen: list[int] = []
    step = in_rotation([lambda i=i: seen.append(i) for i in range(3)])
    for _ in range(5):
        step()
    assert seen == [0, 1, 2, 0, 1]


def test_what_an_error_means() -> None:
    assert explain(torch.OutOfMemoryError("CUDA out of memory")).status == NO_MEMORY
    assert explain(MemoryError()) == Timing(NO_MEMORY, "MemoryError")
    assert explain(RuntimeError("[enforce fail] can't allocate memory: you tried")).status == NO_MEMORY
    assert explain(RuntimeError("x" * 500)).note == "x" * 200


def test_graph_and_plain_times_are_for_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping of the CUDA path, with a clock that counts calls."""
    count = {"calls": 0}

    def call() -> None:
        count["calls"] += 1

    def ticks(run: clock.Call, times: int, wait: bool = True) -> float:
        before = count["calls"]
        for _ in range(times):
            run()
        return (count["calls"] - before) / times  # one millisecond per call

    def capture(calls: list[clock.Call], repeats: int, pool: object, device: object) -> clock.Call:
        if len(calls) == 3:
            raise RuntimeError("capture\nfailed")
        return lambda: [each() for _ in range(repeats) for each in calls]

    monkeypatch.setattr(clock, "_event_ms", ticks)
    monkeypatch.setattr(clock, "_wall_ms", ticks)
    monkeypatch.setattr(clock, "_capture", capture)
    monkeypatch.setattr(clock, "_extra_bytes", lambda run, device: 2**20)
    monkeypatch.setattr(clock, "_release", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)

    def broken() -> None:
        raise torch.OutOfMemoryError("full")

    works = {"two": Work([call] * 2, 2**21), "three": Work([call] * 3), "bad": Work([broken])}
    outcomes = measure(works, torch.device("cuda"), 50)
    two, three = outcomes["two"], outcomes["three"]
    assert (two.graph_ms, two.call_ms, two.memory_mib, two.spread) == (1.0, 1.0, 3.0, 0.0)
    assert (three.graph_ms, three.call_ms, three.note) == (None, 1.0, "no CUDA graph: capture failed")
    assert outcomes["bad"] == Timing(NO_MEMORY, "full")
    waited, own = Work([call], waits=True), Work([call], graphs=True)
    outcomes = measure({"own": own, "waited": waited}, torch.device("cuda"), 50, plain=True, host=True)
    assert [(t.graph_ms, t.call_ms, t.host_ms) for t in outcomes.values()] == [(None, 1.0, 1.0), (1.0, 1.0, 1.0)]


def test_plain_calls_have_all_rounds_and_several_calls_in_each() -> None:
    plans = {"slow": ((lambda: None), 1000.0), "fast": ((lambda: None), 0.1)}
    samples = clock._in_turns(plans, lambda call, count: float(count), 210.0, clock.PLAIN_ROUNDS, clock.PLAIN_CALLS)
    assert samples == {"slow": [5.0] * 21, "fast": [100.0] * 21}


def test_the_host_makes_few_calls_in_a_round() -> None:
    seen: list[str] = []
    plans = {name: ((lambda name=name: seen.append(name)), ms) for name, ms in (("fast", 0.01), ("slow", 100.0))}
    samples = clock._host_times(plans, 200.0)
    assert {name: len(times) for name, times in samples.items()} == {"fast": 15, "slow": 15}
    assert (seen.count("fast"), seen.count("slow")) == (15 * 20, 15 * 2)
