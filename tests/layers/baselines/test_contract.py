"""What holds for every baseline alike: its definition, its rows, masks, other grids, gradients, cost."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sightline.layers import MECHANISMS, Attention, Core, Place, Spec

from ...ops.brute_force import assert_close, some_keys, tokens
from .definitions import BASELINES, GRID, WEIGHTS, lively, output

DIM, HEADS = 12, 2
every_baseline = pytest.mark.parametrize("name", BASELINES)
WITHOUT_ROWS = {"ttt"}
Grid = tuple[int, int]


def build(name: str) -> Any:
    return lively(Spec.parse(BASELINES[name]).build(DIM, HEADS, 16))


def inputs(grid: Grid = GRID, prefix: int = 0, batch: int = 2, masked: bool = False) -> tuple[list[Tensor], Place]:
    """q, k, v with scores that matter, and where they lie."""
    q, k, v = (tokens(batch, prefix + grid[0] * grid[1], HEADS, DIM // HEADS) for _ in range(3))
    return [2 * q, 2 * k, v], Place(grid, q.flatten(2), prefix, some_keys(batch, q.shape[1]) if masked else None)


def test_every_baseline_is_tested() -> None:
    assert set(BASELINES) == set(MECHANISMS) - {"softmax", "linear", "inline", "soft", "soft_norm", "none"}


@every_baseline
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_forward_is_the_definition(name: str, prefix: int, masked: bool) -> None:
    core, ((q, k, v), place) = build(name), inputs(prefix=prefix, masked=masked)
    mask = place.key_mask
    got = core(q, k, v, place)
    want = output(name, core, q, k, v, GRID, prefix, mask, place.context)
    rows = slice(None) if mask is None else mask  # what a masked query gets is left open
    assert_close(got[rows], want[rows], 1e-9)


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in WITHOUT_ROWS])
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_rows_are_those_of_the_matrix(name: str, prefix: int, masked: bool) -> None:
    core, ((q, k, _), place) = build(name), inputs(prefix=prefix, masked=masked)
    mask = place.key_mask
    want = WEIGHTS[name](core, q, k, GRID, prefix, mask)
    asked = torch.tensor([0, 5, 2, 9] if mask is None else torch.where(mask.all(0))[0].tolist())
    got = core.rows(q, k, asked, place)
    assert_close(got, want[:, :, asked], 1e-9, "rows")
    if mask is not None:
        assert (got.transpose(1, -1)[~mask] == 0).all()


@every_baseline
@pytest.mark.parametrize("garbage", [50.0, float("nan"), float("inf")])
def test_masked_tokens_are_not_read(name: str, garbage: float) -> None:
    layer = Attention(DIM, HEADS, Spec.parse(BASELINES[name]))
    lively(layer)
    x = tokens(2, 17, DIM)
    mask = some_keys(2, 17)
    garbled = torch.where(mask[..., None], x, garbage)
    want = layer(x, GRID, 1, key_mask=mask)[mask]
    assert_close(layer(garbled, GRID, 1, key_mask=mask)[mask], want, 1e-12)
    assert (layer(x, GRID, 1)[mask] - want).norm() > 1e-3 * want.norm()


@pytest.mark.parametrize(
    "text", ["performer", "hydra", "efficient", "linear_angular(kernel=0)", "focused(kernel=0)",
             "nystromformer(landmarks=4)", "enhanced(scales=0)", "mala", "rala", "hedgehog", "ttt(key_norm=true)"],
)  # fmt: skip
def test_masking_is_leaving_out(text: str) -> None:
    """Where places do not matter: also with fewer tokens than landmarks, and with none."""
    core, ((q, k, v), place) = lively(Spec.parse(text).build(DIM, HEADS, 16)), inputs()
    for kept in ([0, 3, 4, 7, 9, 12], [2, 5, 6], [8]):
        mask = torch.zeros(2, 16, dtype=torch.bool)
        mask[:, kept] = True
        few = Place((1, len(kept)), q[:, kept].flatten(2))
        want = core(q[:, kept], k[:, kept], v[:, kept], few)
        assert_close(core(q, k, v, replace(place, key_mask=mask))[:, kept], want, 1e-9)
    if core.has_rows:  # a network that has learned nothing still has an output
        assert (core(q, k, v, replace(place, key_mask=torch.zeros(2, 16, dtype=torch.bool))) == 0).all()


@every_baseline
def test_no_key_at_all_is_finite(name: str) -> None:
    core, ((q, k, v), place) = build(name), inputs(prefix=1)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = core(*leaves, replace(place, key_mask=torch.zeros(2, 17, dtype=torch.bool)))
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in leaves)


@every_baseline
@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (3, 5), (9, 2)], ids=str)
def test_other_grids_and_batches(name: str, grid: Grid) -> None:
    core, ((q, k, v), place) = build(name), inputs(grid, prefix=1, batch=3)
    out = core(q, k, v, place)
    assert out.isfinite().all()
    assert_close(out[1:2], core(q[1:2], k[1:2], v[1:2], place.select(slice(1, 2))), 1e-12)


@every_baseline
def test_gradients(name: str) -> None:
    core, (leaves, place) = build(name), inputs((2, 3), prefix=1, batch=1)
    names, parameters = zip(*core.named_parameters(), strict=True) if list(core.parameters()) else ((), ())

    def run(q: Tensor, k: Tensor, v: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(core, dict(zip(names, values, strict=True)), (q, k, v, place))

    variables = [t.detach().requires_grad_() for t in (*leaves, *parameters)]
    assert torch.autograd.gradcheck(run, variables, atol=1e-6, fast_mode=True)


class LargestTensor(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operation puts out."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if isinstance(t, Tensor):
                self.size = max(self.size, t.numel())
        return out


def largest(core: Core, side: int, rows: bool = False) -> int:
    (q, k, v), place = inputs((side, side), batch=1)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    with LargestTensor() as mode:
        if rows:
            core.rows(*leaves[:2], torch.arange(side * side), place).sum().backward()
        else:
            core(*leaves, place).square().sum().backward()
    return mode.size


@every_baseline
def test_memory_is_linear_in_the_tokens(name: str) -> None:
    core = Spec.parse(name).build(DIM, HEADS, 16).double()
    few, many = largest(core, 12), largest(core, 24)
    assert many <= 4 * few
    assert many < 576 * 576
    if name not in {"linformer", *WITHOUT_ROWS}:  # Linformer's rows are those of the projected keys
        assert largest(core, 24, rows=True) >= 576 * 576  # what the test would find


@every_baseline
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    core, ((q, k, v), place) = build(name), inputs((8, 9), prefix=1)
    q, k, v = (t.to(dtype) for t in (q, k, v))
    core = core.to(dtype)
    got = core(q, k, v, place)
    want = core.double()(q.double(), k.double(), v.double(), place)
    assert got.dtype == dtype
    assert_close(got, want, 3e-2 if dtype == torch.bfloat16 else 4e-3)


@every_baseline
def test_many_tokens_in_float16(name: str) -> None:
    core = Spec.parse(name).build(DIM, HEADS, 16).half()
    q, k, v = torch.randn(3, 1, 160 * 160, HEADS, DIM // HEADS).mul(4).half()
    assert core(q, k, v + 10, Place((160, 160), v.flatten(2))).isfinite().all()


@every_baseline
def test_autocast(name: str) -> None:
    layer = Attention(DIM, HEADS, Spec.parse(name))
    x = torch.randn(2, 17, DIM)
    want = layer(x, GRID, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(x, GRID, 1)
    got.float().square().sum().backward()
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want, 5e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "backend"),
    [("linformer(share=true)", "aot_eager"), ("performer", "eager"), ("nystromformer", "eager")],
)
def test_compiles_whole_for_any_size(text: str, backend: str) -> None:
    """Those whose code depends on sizes; the others are products and convolutions.

    Resampling, which Linformer does, is what AOTAutograd cannot always differentiate at symbolic sizes.
    """
    torch.compiler.reset()
    layer = Attention(DIM, HEADS, Spec.parse(text))
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for grid in ((3, 7), (9, 8)):
        x = torch.randn(2, 1 + grid[0] * grid[1], DIM)
        assert_close(compiled(x, grid, 1), layer(x, grid, 1), 1e-5)
