"""What the operators reject: an InputError that names the operator, the argument and its value."""

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sightline import backend
from sightline.ops import headwise_conv, inline_attention, linear_attention, soft_attention, softmax_attention
from sightline.ops.checks import accumulate_dtype, is_exporting, lengths
from sightline.util.errors import InputError

OPERATORS: dict[str, Any] = {
    "softmax_attention": softmax_attention,
    "linear_attention": linear_attention,
    "inline_attention": inline_attention,
    "soft_attention": soft_attention,
    "headwise_conv": headwise_conv,
}
SOFTMAX, LINEAR, INLINE, SOFT, CONV = OPERATORS
QKV = (SOFTMAX, LINEAR, INLINE)
ATTENTION = (*QKV, SOFT)
every = pytest.mark.parametrize("name", ATTENTION)
ENDS = torch.tensor([0, 6])


def tensor(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def arguments(name: str, batch: int = 2) -> dict[str, Any]:
    """Arguments that the operator accepts: (batch, 6 tokens, 3 heads, head dim 8)."""
    x = tensor(batch, 6, 3, 8)
    if name == CONV:
        return {"x": x, "weight": tensor(3, 1, 3, 3), "grid": (2, 3)}
    if name == SOFT:
        return {"q": x, "v": x, "landmarks": x, "normalized": True}
    return {"q": x, "k": x, "v": x}


def rejects(name: str, *mentioned: object, batch: int = 2, **changed: object) -> None:
    """The operator takes the usual arguments, and rejects them when `changed`; the message has all that is `mentioned`.

    The argument comes first, its value next.
    """
    usual = arguments(name, batch)
    assert OPERATORS[name](**usual).shape == (batch, 6, 3, 8)
    with pytest.raises(InputError, match=rf"^{name}: ") as caught:
        OPERATORS[name](**usual | changed)
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(rf"\b{re.escape(str(mentioned[0]))}\b", message), message
    assert all(str(part) in message for part in mentioned), message


# Every tensor of tokens in turn is replaced by this.
TOKENS: dict[str, tuple[Any, tuple[object, ...]]] = {
    "three dimensions": (tensor(2, 6, 24), ((2, 6, 24),)),
    "five dimensions": (tensor(2, 6, 3, 8, 1), ((2, 6, 3, 8, 1),)),
    "a number": (tensor(), ((),)),
    "no channels": (tensor(2, 6, 3, 0), ((2, 6, 3, 0),)),
    "integers": (tensor(2, 6, 3, 8, dtype=torch.int64), (torch.int64,)),
    "booleans": (tensor(2, 6, 3, 8, dtype=torch.bool), (torch.bool,)),
    "complex numbers": (tensor(2, 6, 3, 8, dtype=torch.complex64), (torch.complex64,)),
    "sparse": (tensor(2, 6, 3, 8).to_sparse(), (torch.sparse_coo,)),
    "an array": (tensor(2, 6, 3, 8).numpy(), ("ndarray",)),
    "nested": (torch.nested.nested_tensor([tensor(6, 3, 8)] * 2), ("nested",)),
}
# Every tensor of tokens but the first, with which it has to agree.
OTHERS: dict[str, tuple[Tensor, tuple[object, ...]]] = {
    "dtype": (tensor(2, 6, 3, 8, dtype=torch.float16), ("q", torch.float16, torch.float32)),
    "device": (tensor(2, 6, 3, 8, device="meta"), ("q", "meta", "cpu")),
    "larger batch": (tensor(3, 6, 3, 8), ("q", (3, 6, 3, 8), (2, 6, 3, 8))),
    "batch of one": (tensor(1, 6, 3, 8), ("q", (1, 6, 3, 8))),
    "more heads": (tensor(2, 6, 4, 8), ("q", (2, 6, 4, 8))),
    "one head": (tensor(2, 6, 1, 8), ("q", (2, 6, 1, 8))),
}


@every
@pytest.mark.parametrize("case", TOKENS)
def test_tokens(name: str, case: str) -> None:
    wrong, mentioned = TOKENS[case]
    for argument in list(arguments(name))[:3]:
        rejects(name, argument, *mentioned, **{argument: wrong})


@every
@pytest.mark.parametrize("case", OTHERS)
def test_tokens_agree(name: str, case: str) -> None:
    wrong, mentioned = OTHERS[case]
    for argument in list(arguments(name))[1:3]:
        rejects(name, argument, *mentioned, **{argument: wrong})


@every
def test_keys_and_values_agree(name: str) -> None:
    keys, of_values = ("landmarks", "q") if name == SOFT else ("k", "k")
    rejects(name, keys, "q", (2, 6, 3, 4), (2, 6, 3, 8), **{keys: tensor(2, 6, 3, 4)})
    rejects(name, "v", of_values, (2, 5, 3, 8), v=tensor(2, 5, 3, 8))


MASKS: list[tuple[Any, object]] = [
    (tensor(2, 6), torch.float32),
    (tensor(2, 6, dtype=torch.int64), torch.int64),
    (tensor(2, 6, dtype=torch.uint8), torch.uint8),
    (tensor(2, 5, dtype=torch.bool), (2, 5)),
    (tensor(1, 6, dtype=torch.bool), (1, 6)),
    (tensor(6, dtype=torch.bool), (6,)),
    (tensor(2, 6, 1, dtype=torch.bool), (2, 6, 1)),
    (tensor(2, 6, dtype=torch.bool, device="meta"), "meta"),
    ([[True] * 6] * 2, "list"),
    (torch.ones(2, 6, dtype=torch.bool).to_sparse(), torch.sparse_coo),
]


@every
@pytest.mark.parametrize(("mask", "value"), MASKS)
def test_key_mask(name: str, mask: object, value: object) -> None:
    rejects(name, "key_mask", value, key_mask=mask)


CUMULATIVE: list[tuple[Any, object]] = [
    (torch.tensor([1, 3, 6]), [1, 3, 6]),
    (torch.tensor([0, 4, 3, 6]), [0, 4, 3, 6]),
    (torch.tensor([0, 3, 5]), [0, 3, 5]),
    (torch.tensor([0, 3, 7]), [0, 3, 7]),
    (torch.tensor([0.0, 6.0]), torch.float32),
    (torch.tensor([0]), (1,)),
    (torch.tensor([[0, 6]]), (1, 2)),
    ([0, 6], [0, 6]),
    (torch.tensor([0, 6], device="meta"), "meta"),
    (torch.tensor([0, 6]).to_sparse(), torch.sparse_coo),
]


@every
@pytest.mark.parametrize(("ends", "value"), CUMULATIVE)
def test_ends_of_packed_sequences(name: str, ends: object, value: object) -> None:
    rejects(name, "cu_seqlens", value, batch=1, cu_seqlens=ends, **({"cu_landmarks": ENDS} if name == SOFT else {}))
    if name == SOFT:
        rejects(name, "cu_landmarks", value, batch=1, cu_seqlens=ENDS, cu_landmarks=ends)


@every
def test_packed_is_one_row_without_a_mask(name: str) -> None:
    packed = {"cu_seqlens": ENDS, **({"cu_landmarks": ENDS} if name == SOFT else {})}
    rejects(name, "q", 2, "cu_seqlens", **packed)
    rejects(name, "key_mask", "cu_seqlens", batch=1, key_mask=torch.ones(1, 6, dtype=torch.bool), **packed)
    if name != SOFT:
        keys = tensor(1, 7, 3, 8)
        rejects(name, "k", "q", (1, 7, 3, 8), (1, 6, 3, 8), batch=1, k=keys, v=keys, cu_seqlens=ENDS)


RESIDUAL, GRID = tensor(2, 24, 3, 3), (2, 3)
PACKED = {"batch": 1, "cu_seqlens": torch.tensor([0, 2, 6])}
AFFINE = (tensor(8, 8), tensor(8))
# Operators, what the message mentions (the argument first), and what is changed.
ROWS: list[tuple[tuple[str, ...], tuple[object, ...], dict[str, Any]]] = [
    *(
        ((INLINE,), ("residual", shape), {"residual": tensor(*shape), "grid": GRID})
        for shape in [(2, 24, 3), (2, 23, 3, 3), (1, 24, 3, 3), (2, 24, 5, 5), (2, 3, 8, 3, 3)]
    ),
    ((INLINE,), ("residual", torch.int64), {"residual": RESIDUAL.long(), "grid": GRID}),
    ((INLINE,), ("residual", "meta", "cpu"), {"residual": RESIDUAL.to("meta"), "grid": GRID}),
    ((INLINE,), ("residual", "list"), {"residual": [0.0], "grid": GRID}),
    ((INLINE,), ("v", "q", (2, 5, 3, 8)), {"q": tensor(2, 5, 3, 8), "residual": RESIDUAL, "grid": GRID}),
    ((INLINE,), ("grid", None), {"residual": RESIDUAL}),
    ((INLINE,), ("grid", "2x2", 4, 6), {"residual": RESIDUAL, "grid": (2, 2)}),
    ((INLINE,), ("grid", "2x3", "prefix=1", 7, 6), {"residual": RESIDUAL, "grid": GRID, "prefix": 1}),
    *(
        ((INLINE,), ("grid", repr(grid)), {"residual": RESIDUAL, "grid": grid})
        for grid in [(2, 3, 1), (-2, -3), 6, (2.0, 3.0), "23"]
    ),
    *(((INLINE,), ("prefix", repr(prefix)), {"prefix": prefix}) for prefix in (-1, -2, True, "a", None, 1.0)),
    ((INLINE,), ("grids", None, 2), {"residual": RESIDUAL, **PACKED}),
    ((INLINE,), ("grids", [(2, 1)], 2), {"residual": RESIDUAL, "grids": [(2, 1)], **PACKED}),
    ((INLINE,), ("grids", 2), {"residual": RESIDUAL, "grids": [(2, 1), (2, 2), (0, 0)], **PACKED}),
    ((INLINE,), ("grids", "[1]", "2x1", 4), {"residual": RESIDUAL, "grids": [(2, 1), (2, 1)], **PACKED}),
    (
        (INLINE,),
        ("residual", (1, 24, 3, 3), (2, 24, 3, 3)),
        {"residual": RESIDUAL[:1], "grids": [(2, 1)] * 2, **PACKED},
    ),
    ((SOFTMAX,), ("bias", "cu_seqlens"), {"bias": tensor(3, 6, 6), **PACKED}),
    ((SOFTMAX,), ("bias", "list"), {"bias": [0.0]}),
    ((SOFTMAX,), ("bias", torch.bool), {"bias": tensor(6, 6, dtype=torch.bool)}),
    ((SOFTMAX,), ("bias", "meta"), {"bias": tensor(6, 6, device="meta")}),
    ((SOFTMAX,), ("bias", (5, 6), (2, 3, 6, 6)), {"bias": tensor(5, 6)}),
    ((SOFTMAX,), ("bias", (1, 2, 3, 6, 6)), {"bias": tensor(1, 2, 3, 6, 6)}),
    *(
        ((LINEAR, INLINE), ("phi", repr(phi), "relu_affine"), {"phi": phi})
        for phi in ("softmax", "", "ReLU", 1, ["relu"])
    ),
    ((LINEAR, INLINE), ("phi", "array"), {"phi": np.zeros(3)}),
    ((LINEAR, INLINE), ("affine", "relu"), {"phi": "relu", "affine": tensor(8, 8)}),
    *(
        ((LINEAR, INLINE), ("affine", value), {"phi": "relu_affine", "affine": affine})
        for affine, value in [
            (5, 5),
            ("ab", "'ab'"),
            (tensor(2, 8), "tensor"),
            (AFFINE[:1], "tensor"),
            ((1, 2), "int"),
            ([*AFFINE, None], "None"),
            ((tensor(8, 8), None), "NoneType"),
            (AFFINE[0].numpy(), "array"),
            ((tensor(8, 8, dtype=torch.complex64), tensor(8)), torch.complex64),
            ((tensor(8, 8), tensor(8, dtype=torch.int32)), torch.int32),
            ((tensor(8, 8, device="meta"), tensor(8)), "meta"),
        ]
    ),
    ((LINEAR, INLINE), ("affine", None), {"phi": "relu_affine"}),
    ((LINEAR, INLINE), ("affine", "relu"), {"phi": "relu", "affine": AFFINE}),
    *(
        ((LINEAR, INLINE), ("affine", shapes), {"phi": "relu_affine", "affine": tuple(tensor(*s) for s in shapes)})
        for shapes in [((8, 7), (8,)), ((3, 8, 8), (6, 3, 8)), ((2, 8, 8), (8,))]
    ),
    *(
        ((LINEAR,), ("eps", repr(eps)), {"eps": eps})
        for eps in (0.0, -1e-6, float("nan"), float("inf"), 1e60, True, "a", None)
    ),
    *(((LINEAR,), ("eps", value), {"eps": eps}) for eps, value in [(10**400, "1000"), (Fraction(-1, 2), -0.5)]),
    ((SOFT,), ("landmarks", (2, 0, 3, 8)), {"landmarks": tensor(2, 0, 3, 8)}),
    *(
        ((SOFT,), ("cu_landmarks", counts, 2), {"cu_landmarks": torch.tensor(ends), **PACKED})
        for ends, counts in [([0, 6, 6], [6, 0]), ([0, 6], [6]), ([0, 1, 2, 6], [1, 1, 4])]
    ),
    ((SOFT,), ("cu_seqlens", "cu_landmarks"), {"batch": 1, "cu_seqlens": ENDS}),
    ((SOFT,), ("cu_landmarks", "cu_seqlens"), {"batch": 1, "cu_landmarks": ENDS}),
    *(((SOFT,), ("iterations", repr(n)), {"iterations": n}) for n in (0, -1, True, 2.0, "a", None)),
    *(((SOFT,), ("normalized", repr(value)), {"normalized": value}) for value in (None, 1, "yes")),
    ((SOFT,), ("scale", None), {"scale": None}),
    *(((SOFTMAX, INLINE, SOFT), ("scale", repr(scale)), {"scale": scale}) for scale in ("a", True, 1j)),
    ((SOFTMAX, INLINE, SOFT), ("scale", "tensor([[1.], [1.]])"), {"scale": torch.ones(2, 1)}),
    ((SOFTMAX, INLINE, SOFT), ("scale", "1000"), {"scale": 10**400}),
    ((SOFTMAX, INLINE, SOFT), ("scale", "int"), {"scale": 10**5000}),
    ((SOFTMAX, INLINE, SOFT), ("scale", "Fraction"), {"scale": Fraction(10**400)}),
    ((CONV,), ("weight", "list"), {"weight": [[0.0]]}),
    ((CONV,), ("weight", "meta", "cpu"), {"weight": tensor(3, 1, 3, 3, device="meta")}),
    *(
        ((CONV,), ("weight", dtype), {"weight": tensor(3, 1, 3, 3, dtype=dtype)})
        for dtype in (torch.complex64, torch.int64, torch.bool)
    ),
    ((CONV,), ("weight", 0), {"weight": tensor(3, 1, 0, 0)}),
    *(
        ((CONV,), ("weight", shape), {"weight": tensor(*shape)})
        for shape in [(2, 1, 3, 3), (3, 1, 3, 5), (3, 2, 3, 3), (3, 1, 9)]
    ),
    ((CONV,), ("weight", 4), {"weight": tensor(3, 1, 4, 4)}),
    ((CONV,), ("grid", "2x2"), {"grid": (2, 2)}),
    ((CONV,), ("add", "x", (2, 5, 3, 8)), {"add": tensor(2, 5, 3, 8)}),
    ((CONV,), ("add", "x", (2, 6, 3, 4)), {"add": tensor(2, 6, 3, 4)}),
    (ATTENTION, ("backend", "'cuda'", *backend.BACKENDS), {"backend": "cuda"}),
    (ATTENTION, ("backend", "tensor"), {"backend": tensor(2, 6, 3, 8)}),
]


@pytest.mark.parametrize(("names", "mentioned", "changed"), ROWS)
def test_other_arguments(names: tuple[str, ...], mentioned: tuple[object, ...], changed: dict[str, Any]) -> None:
    for name in names:
        rejects(name, *mentioned, **changed)


@every
def test_backend_without_a_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "TRITON_OPERATORS", frozenset())
    rejects(name, "backend", "'triton'", "'auto'", "'torch'", backend="triton")


@every
def test_unknown_backend_in_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_BACKEND", "nonsense")
    with pytest.raises(InputError, match=rf"^{name}: SIGHTLINE_BACKEND='nonsense'"):
        OPERATORS[name](**arguments(name))
    assert OPERATORS[name](**arguments(name), backend="torch").shape == (2, 6, 3, 8)


def test_lengths() -> None:
    assert lengths("op", torch.tensor([0, 2, 2, 7], dtype=torch.int32), 7) == [2, 0, 5]
    assert lengths("op", torch.tensor([0, 0]), 0) == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sums_are_taken_in_float32_or_wider(dtype: torch.dtype) -> None:
    assert accumulate_dtype(dtype) == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("name", [SOFTMAX, INLINE, SOFT])
@pytest.mark.parametrize("scale", [1, 0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2), 10**20])
def test_kinds_of_scales(name: str, scale: float) -> None:
    tokens = {key: torch.ones_like(value) for key, value in arguments(name).items() if isinstance(value, Tensor)}
    usual = arguments(name) | tokens
    assert torch.equal(OPERATORS[name](**usual, scale=scale), OPERATORS[name](**usual, scale=float(scale)))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6, 1), (1, 6), (3, 1, 1), (2, 1, 6, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_bias_broadcasts(shape: tuple[int, ...], masked: bool) -> None:
    q, k, v, bias = torch.randn(2, 6, 3, 8), *torch.randn(2, 2, 6, 3, 8), torch.randn(shape, requires_grad=True)
    mask = torch.arange(6).expand(2, 6) < 4 if masked else None
    out = softmax_attention(q, k, v, bias=bias, key_mask=mask)
    whole = softmax_attention(q, k, v, bias=bias.expand(2, 3, 6, 6).contiguous(), key_mask=mask)
    torch.testing.assert_close(out, whole)
    assert torch.autograd.grad(out.sum(), bias)[0].shape == shape


@pytest.mark.parametrize(("batch", "grid", "heads"), [(0, (2, 3), 3), (2, (0, 3), 3), (2, (2, 0), 3), (2, (2, 3), 0)])
def test_nothing_convolved_is_nothing(batch: int, grid: tuple[int, int], heads: int) -> None:
    x = torch.zeros(batch, grid[0] * grid[1], heads, 8, requires_grad=True)
    weight = torch.zeros(heads, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    for add in (None, x):
        out = headwise_conv(x, weight, grid, add=add)
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
        grads = torch.autograd.grad(out.sum(), (x, weight))
        assert [grad.shape for grad in grads] == [x.shape, weight.shape]


@pytest.mark.slow
@pytest.mark.parametrize("name", [SOFTMAX, INLINE, SOFT])
def test_checks_of_numbers_are_traced(name: str) -> None:
    """A scale that changes from call to call is a symbol for the compiler."""

    def function(scale: float) -> Tensor:
        return OPERATORS[name](**usual, scale=scale)

    usual = arguments(name) | {n: torch.randn(2, 6, 3, 8) for n in ("q", "v")}
    if name == SOFT:
        usual["iterations"] = 1  # each is traced
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    for scale in (0.5, 0.25):
        torch.testing.assert_close(compiled(scale), function(scale))


def test_compiling_is_not_exporting() -> None:
    class Told(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + (1 if is_exporting() else 0)

    x = torch.zeros(2)
    assert not torch.compile(Told(), backend="eager", fullgraph=True)(x).any()
    assert torch.export.export(Told(), (x,)).module()(x).all()
    assert not Told()(x).any()
