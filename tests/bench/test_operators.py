"""Operators as candidates: every mechanism runs, wrong ones are rejected, bytes and FLOPs follow the formulas."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sightline import backend
from sightline.bench import operators, peers
from sightline.bench.candidates import DTYPES, TOLERANCES, MismatchError, Plan, row_error
from sightline.bench.cases import OP_CASES, OpCase, parse_shape
from sightline.bench.modules import TIMM, Module
from sightline.bench.operators import BASELINES, Operands, count_sets, implementations, make_operands
from sightline.bench.results import FAILED, MISSING, NO_MEMORY, OK, REJECTED, Report, Row
from sightline.bench.run import run_plan
from sightline.bench.tables import crossovers
from sightline.layers.core import Core, Place
from sightline.layers.spec import MECHANISMS, Mechanism, Spec
from sightline.ops import inline

CPU = torch.device("cpu")
CASE = parse_shape("3,2,8,1+4x5")
COPY_SPEED = 1e10
KNOWN = (BASELINES["sdpa"], BASELINES["move"])


@pytest.fixture
def broken_kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A Triton kernel of InLine that is off by `factor`, and fails where told to."""
    state = {"factor": 1.5}

    def kernel(*args: object, **kwargs: object) -> Tensor:
        return inline.reference.inline_attention(*args, **kwargs) * state["factor"]  # type: ignore[arg-type]

    monkeypatch.setitem(inline.IMPLEMENTATIONS, "triton", kernel)
    monkeypatch.setattr(backend, "TRITON_OPERATORS", frozenset({"inline_attention"}))
    monkeypatch.setattr(backend, "_no_device", lambda device: None)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["forward", "forward+backward"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "mechanism", [*sorted(set(MECHANISMS) - {"none"}), "inline(phi=relu,residual=false)", "soft(landmarks=4)"]
)
def test_every_mechanism_is_checked_and_timed(mechanism: str, dtype: str, mode: str) -> None:
    plan = Plan(CASE, mode, dtype, tuple(implementations(mechanism, CPU)))
    (row,) = run_plan(plan, CPU, COPY_SPEED, 1)
    assert (row.status, row.note) == (OK, "")
    assert row.call_ms
    assert row.graph_ms is None
    assert row.error is not None
    assert row.error <= TOLERANCES[dtype]
    assert row.of_floor == pytest.approx(row.call_ms / row.floor_ms)
    assert row.images_per_s == pytest.approx(3 / row.call_ms * 1e3)


def test_a_mechanism_without_operator_is_timed_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(Core):
        kernel = 2.0

        def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
            return (2 if backend.requested() == "torch" else self.kernel) * v + q * 0

    monkeypatch.setitem(MECHANISMS, "doubled", Mechanism(Doubled, "N", "nowhere"))
    plan = Plan(CASE, "forward+backward", "float32", tuple(implementations("doubled", CPU)))
    (row,) = run_plan(plan, CPU, COPY_SPEED, 1)
    assert row.status == OK
    assert row.call_ms
    monkeypatch.setattr(Doubled, "kernel", 3.0)
    (row,) = run_plan(plan, CPU, COPY_SPEED, 1)
    assert row.status == REJECTED
    assert "doubled reference on 3,2,8,1+4x5, float32: output is 0.5 from" in row.note
    with pytest.raises(ValueError, match="backend: doubled"):
        implementations("doubled", CPU, ("triton",))


def test_a_module_is_compiled_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: lambda x: function(x) * 1.5)
    (plain,) = implementations("focused", CPU)
    both = (plain, replace(plain, compiled=True))
    first, second = run_plan(Plan(CASE, "forward", "float32", both), CPU, COPY_SPEED, 1)
    assert (first.status, second.status) == (OK, REJECTED)
    assert (first.how, second.how) == ("eager", "compile")


def test_none_is_nothing_to_time() -> None:
    with pytest.raises(ValueError, match="mechanism: 'none'"):
        implementations("none", CPU)


def test_baselines_run_both_ways() -> None:
    for mode in ("forward", "forward+backward"):
        rows = run_plan(Plan(CASE, mode, "float32", KNOWN), CPU, COPY_SPEED, 1)
        assert [row.status for row in rows] == [OK, OK]


def test_a_peer_that_is_not_installed_is_a_row_and_no_failure() -> None:
    (row,) = run_plan(Plan(CASE, "forward", "float32", (BASELINES["flash_bla"],)), CPU, COPY_SPEED, 1)
    assert (row.candidate, row.status, row.ms) == ("flash_bla", MISSING, None)
    assert "flash_bla is not installed" in row.note
    assert Report({}, [row]).failures() == []


def test_a_peer_is_checked_like_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ (k.mT @ v)) / (q @ k.sum(-2).unsqueeze(-1))

    fused = SimpleNamespace(linear_attention=attention)
    monkeypatch.setattr(peers, "import_module", lambda name: fused)
    plan = Plan(CASE, "forward+backward", "float32", (BASELINES["flash_bla"],))
    assert [(row.status, row.note) for row in run_plan(plan, CPU, COPY_SPEED, 1)] == [(OK, "")]
    fused.linear_attention = lambda q, k, v: v
    assert [row.status for row in run_plan(plan, CPU, COPY_SPEED, 1)] == [REJECTED]


@pytest.mark.parametrize("mode", ["forward", "forward+backward"])
def test_modules_run_next_to_timm(mode: str) -> None:
    found = (Module("inline module", Spec("inline")), Module(TIMM, None))
    own, timm = run_plan(Plan(CASE, mode, "float32", found, plain=True), CPU, COPY_SPEED, 1)
    assert [(row.kind, row.status, row.note) for row in (own, timm)] == [("module", OK, "")] * 2
    assert own.host_ms
    assert own.over_timm == pytest.approx(timm.call_ms / own.call_ms)


def test_a_wrong_kernel_is_rejected_and_the_others_timed(broken_kernel: dict[str, float]) -> None:
    both = implementations("inline", CPU, ("triton", "torch"))
    wrong, right = run_plan(Plan(CASE, "forward", "float32", tuple(both)), CPU, COPY_SPEED, 1)
    assert wrong.status == REJECTED
    assert wrong.ms is None
    assert "inline triton" in wrong.note
    assert "output is 0.5 from the float32 reference (limit 0.0001); not timed" in wrong.note
    assert right.status == OK
    broken_kernel["factor"] = 1.0
    assert {row.status for row in run_plan(Plan(CASE, "forward", "float32", tuple(both)), CPU, COPY_SPEED, 1)} == {OK}


@pytest.mark.parametrize(("name", "index"), [("q", 0), ("k", 1), ("v", 2), ("residual", 3)])
def test_a_wrong_gradient_is_rejected_by_name(name: str, index: int) -> None:
    (candidate,) = implementations("inline", CPU)
    right = candidate.function(CASE, CPU, torch.float32)
    x = make_operands(CASE, Spec("inline"), torch.float32, CPU, 0)

    def wrong(y: Operands) -> Tensor:
        leaf = list(y.leaves.values())[index]
        return right(y) + (leaf - leaf.detach()).sum()  # right values, wrong slope

    candidate.check(wrong, x, Plan(CASE, "forward", "float32", ()))
    with pytest.raises(MismatchError, match=f"gradient of {name} is"):
        candidate.check(wrong, x, Plan(CASE, "forward+backward", "float32", ()))


def test_only_the_last_image_wrong_is_found() -> None:
    (candidate,) = implementations("inline", CPU)
    right = candidate.function(CASE, CPU, torch.float32)

    def wrong(y: Operands) -> Tensor:
        out = right(y).clone()
        out[-1, 0] = float("nan")
        return out

    x = make_operands(CASE, Spec("inline"), torch.float32, CPU, 0)
    with pytest.raises(MismatchError, match="output is nan"):
        candidate.check(wrong, x, Plan(CASE, "forward", "float32", ()))


def test_small_rows_count() -> None:
    want = torch.ones(1, 100, 4)
    want[0, 0] = 1e-3  # as a class token without a local term
    got = want.clone()
    got[0, 0] = 0
    assert row_error(got, want) == pytest.approx(1)
    assert row_error(want, want) == 0
    assert not row_error(want * float("nan"), want) <= 1


def test_what_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate 1 GiB")

    monkeypatch.setitem(inline.IMPLEMENTATIONS, "triton", full)
    plan = Plan(CASE, "forward", "float32", (*implementations("inline", CPU, ("triton",)), *KNOWN))
    monkeypatch.setattr(backend, "TRITON_OPERATORS", frozenset())
    rows = run_plan(plan, CPU, COPY_SPEED, 1)
    assert [row.status for row in rows] == [FAILED, OK, OK]
    assert "there is no Triton kernel for it" in rows[0].note
    monkeypatch.setattr(backend, "TRITON_OPERATORS", frozenset({"inline_attention"}))
    monkeypatch.setattr(backend, "_no_device", lambda device: None)
    rows = run_plan(plan, CPU, COPY_SPEED, 1)
    assert [row.status for row in rows] == [NO_MEMORY, OK, OK]
    assert rows[0].note == "CUDA out of memory. Tried to allocate 1 GiB"


def test_bytes_of_the_floor() -> None:
    tokens, weights = 256 * 197 * 192, 256 * 192 * 9
    forward, both = (Plan(OP_CASES["deit_tiny_224"], mode, "bfloat16", ()) for mode in ("forward", "forward+backward"))
    (full,), (plain,) = implementations("inline", CPU), implementations("inline(residual=false)", CPU)
    assert [plain.moved_bytes(plan) for plan in (forward, both)] == [4 * tokens * 2, 11 * tokens * 2]
    assert [full.moved_bytes(plan) for plan in (forward, both)] == [
        (4 * tokens + weights) * 2,
        (11 * tokens + 3 * weights) * 2,
    ]
    assert round(plain.moved_bytes(forward) / 4.25e12 * 1e3, 3) == 0.018  # as published
    (soft,) = implementations("soft(landmarks=4)", CPU)
    landmarks = 256 * 4 * 192
    assert [soft.moved_bytes(plan) for plan in (forward, both)] == [
        (3 * tokens + landmarks) * 2,
        (8 * tokens + 3 * landmarks) * 2,
    ]


def test_operations() -> None:
    case = OpCase("x", 2, 3, 8, (4, 4))
    forward, both = (Plan(case, mode, "float32", ()) for mode in ("forward", "forward+backward"))
    (plain,) = implementations("inline(residual=false)", CPU)
    products = 2 * (2 * 2 * 3 * 16 * 8 * 8)  # phi(k)^T v and phi(q) C
    assert plain.flops(forward) == products
    assert plain.flops(both) == 3 * products
    (full,) = implementations("inline", CPU)
    assert full.flops(forward) == products + 2 * 9 * 2 * 16 * 24
    assert BASELINES["sdpa"].flops(forward) == 2 * (2 * 2 * 3 * 16 * 16 * 8)
    assert BASELINES["move"].flops(forward) == 0


def test_what_any_call_costs() -> None:
    """The product has gradients of queries, keys and values, compiled too."""
    plan = Plan(CASE, "forward+backward", "float32", ())
    for candidate in (BASELINES["product"], replace(BASELINES["product"], compiled=True)):
        out, *gradients = candidate.prepare(plan, CPU).calls[0]()  # type: ignore[misc]
        x = make_operands(CASE, candidate.spec, DTYPES["float32"], CPU, 0)
        torch.testing.assert_close(out, x.q * x.k + x.v)
        for found, want in zip(gradients, (x.k * x.grad, x.q * x.grad, x.grad), strict=True):
            torch.testing.assert_close(found, want)


def test_operands_are_views_of_a_packed_tensor() -> None:
    x = make_operands(CASE, Spec("inline"), DTYPES["bfloat16"], CPU, 0)
    assert x.q.stride() == (21 * 3 * 16, 3 * 16, 8, 1)
    assert x.k.data_ptr() - x.q.data_ptr() == 16 * 2
    assert torch.equal(x.q, make_operands(CASE, Spec("softmax"), DTYPES["bfloat16"], CPU, 0).q)


def test_a_call_for_every_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "count_sets", lambda moved, device: 2)
    (candidate,) = implementations("linear", CPU)
    first, second = candidate.prepare(Plan(CASE, "forward", "float32", ()), CPU).calls
    assert not torch.equal(first(), second())
    assert not first().requires_grad


def test_sets_outgrow_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        L2_cache_size = 50 * 2**20

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    cuda = torch.device("cuda")
    assert [count_sets(size * 2**20, cuda) for size in (1, 77, 199, 400)] == [8, 3, 2, 1]
    assert count_sets(1, CPU) == 1


def test_crossover() -> None:
    def row(candidate: str, tokens: int, ms: float) -> Row:
        return Row("op", "x", candidate, "forward", False, "float32", "cpu", 2, tokens, 6, 32, call_ms=ms)

    points = [("sdpa", 100, 1.0), ("a", 100, 2.0), ("b", 100, 0.5), ("c", 100, 9.0), ("move", 100, 0.1),
              ("sdpa", 400, 16.0), ("a", 400, 8.0), ("b", 400, 2.0), ("c", 400, 36.0), ("move", 400, 0.4)]  # fmt: skip
    found = [
        sentence.split(", 6 heads of 32, forward, float32: ") for sentence in crossovers([row(*p) for p in points])
    ]
    assert [(name, re.findall("[0-9]+", text)) for name, text in found] == [
        ("a", ["200"]),
        ("b", ["100"]),
        ("c", ["400"]),
    ]
    assert "not" in found[2][1]
