"""What the operators refuse: a ValueError that names the operator, the argument, its value and the remedy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sightline import backend
from sightline.ops import headwise_conv, inline_attention, linear_attention, soft_attention, softmax_attention
from sightline.ops.checks import accumulate_dtype, lengths

OPERATORS = {
    "softmax_attention": softmax_attention,
    "linear_attention": linear_attention,
    "inline_attention": inline_attention,
    "soft_attention": soft_attention,
}
QKV = ("softmax_attention", "linear_attention", "inline_attention")
every = pytest.mark.parametrize("name", OPERATORS)
every_qkv = pytest.mark.parametrize("name", QKV)


def tensor(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def arguments(name: str, batch: int = 2) -> dict[str, Any]:
    """Arguments that the operator accepts: (batch, 6 tokens, 3 heads, head dim 8)."""
    names = ("q", "v", "landmarks") if name == "soft_attention" else ("q", "k", "v")
    accepted: dict[str, Any] = {n: tensor(batch, 6, 3, 8) for n in names}
    return accepted | ({"normalized": True} if name == "soft_attention" else {})


def refuses(name: str, match: str, batch: int = 2, **changed: object) -> None:
    """The operator takes the usual arguments, and refuses them when `changed`."""
    usual = arguments(name, batch)
    assert OPERATORS[name](**usual).shape == (batch, 6, 3, 8)
    with pytest.raises(ValueError, match=rf"^{name}: {match}"):
        OPERATORS[name](**usual | changed)


@every
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 6, 24), (2, 6, 3, 8, 1), ()])
def test_number_of_dimensions(name: str, position: int, shape: tuple[int, ...]) -> None:
    argument = list(arguments(name))[position]
    shown = ", ".join(map(str, shape))
    refuses(name, rf"{argument} has shape \({shown}\); give it as \(batch, tokens", **{argument: tensor(*shape)})


@every
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_dtype_is_floating_point(name: str, position: int, dtype: torch.dtype) -> None:
    argument = list(arguments(name))[position]
    refuses(name, rf"{argument} is {dtype}; cast it", **{argument: tensor(2, 6, 3, 8, dtype=dtype)})


@every
@pytest.mark.parametrize("position", [1, 2])
def test_mixed_dtypes(name: str, position: int) -> None:
    argument = list(arguments(name))[position]
    wrong = tensor(2, 6, 3, 8, dtype=torch.float16)
    refuses(name, rf"{argument} is torch.float16 but q is torch.float32; cast", **{argument: wrong})


@every
@pytest.mark.parametrize("position", [1, 2])
def test_mixed_devices(name: str, position: int) -> None:
    argument = list(arguments(name))[position]
    refuses(name, rf"{argument} is on meta but q is on cpu", **{argument: tensor(2, 6, 3, 8, device="meta")})


@every
@pytest.mark.parametrize("position", [1, 2])
@pytest.mark.parametrize("shape", [(3, 6, 3, 8), (1, 6, 3, 8), (2, 6, 4, 8), (2, 6, 1, 8)])
def test_batch_and_heads_agree(name: str, position: int, shape: tuple[int, ...]) -> None:
    argument = list(arguments(name))[position]
    shown = ", ".join(map(str, shape))
    refuses(
        name,
        rf"{argument} has shape \({shown}\) but q has \(2, 6, 3, 8\); batch and heads",
        **{argument: tensor(*shape)},
    )


@every
def test_head_dim_of_the_keys(name: str) -> None:
    argument = "landmarks" if name == "soft_attention" else "k"
    refuses(
        name,
        rf"{argument} has shape \(2, 6, 3, 4\) but q has \(2, 6, 3, 8\); they need the same head dim",
        **{argument: tensor(2, 6, 3, 4)},
    )


@every
def test_number_of_values(name: str) -> None:
    other = "q" if name == "soft_attention" else "k"
    refuses(name, rf"v has shape \(2, 5, 3, 8\) but {other} has .*same number of tokens", v=tensor(2, 5, 3, 8))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_key_mask_is_boolean(name: str, dtype: torch.dtype) -> None:
    refuses(name, rf"key_mask is {dtype}; give booleans", key_mask=tensor(2, 6, dtype=dtype))


@every
@pytest.mark.parametrize("shape", [(2, 5), (1, 6), (6,), (2, 6, 1)])
def test_key_mask_has_a_place_for_every_key(name: str, shape: tuple[int, ...]) -> None:
    shown = ", ".join(map(str, shape))
    refuses(
        name,
        rf"key_mask has shape \({shown},?\); give \(batch, key tokens\) = \(2, 6\)",
        key_mask=tensor(*shape, dtype=torch.bool),
    )


@pytest.mark.parametrize("shape", [(2, 24, 3), (2, 23, 3, 3), (1, 24, 3, 3), (2, 24, 5, 5), (2, 3, 8, 3, 3)])
def test_shape_of_the_residual(shape: tuple[int, ...]) -> None:
    shown = ", ".join(map(str, shape))
    refuses(
        "inline_attention",
        rf"residual has shape \({shown}\); give \(batch, channels, 3, 3\) = \(2, 24, 3, 3\)",
        residual=tensor(*shape),
        grid=(2, 3),
    )


def test_residual_is_floating_point() -> None:
    wrong = tensor(2, 24, 3, 3, dtype=torch.int64)
    refuses("inline_attention", "residual is torch.int64 on cpu; give floating-point", residual=wrong, grid=(2, 3))


def test_residual_is_on_the_same_device() -> None:
    wrong = tensor(2, 24, 3, 3, device="meta")
    refuses("inline_attention", "residual is .* on meta; give .* on cpu", residual=wrong, grid=(2, 3))


def test_residual_needs_as_many_queries_as_values() -> None:
    refuses(
        "inline_attention",
        r"v has shape \(2, 6, 3, 8\) but q has \(2, 5, 3, 8\)",
        q=tensor(2, 5, 3, 8),
        residual=tensor(2, 24, 3, 3),
        grid=(2, 3),
    )


@pytest.mark.parametrize(
    ("grid", "prefix", "match"),
    [
        (None, 0, "grid=None with a residual; give"),
        ((2, 2), 0, "grid=2x2 with prefix=0 makes 4 tokens but there are 6"),
        ((2, 3), 1, "grid=2x3 with prefix=1 makes 7 tokens but there are 6"),
        ((2, 3, 1), 0, r"grid=\(2, 3, 1\) is not \(height, width\)"),
        ((-2, -3), 0, r"grid=\(-2, -3\) is not \(height, width\)"),
        ((2, 3), -1, "prefix=-1 is negative; give"),
    ],
)
def test_grid_and_prefix(grid: tuple[int, ...] | None, prefix: int, match: str) -> None:
    refuses("inline_attention", match, residual=tensor(2, 24, 3, 3), grid=grid, prefix=prefix)


def test_negative_prefix_without_residual() -> None:
    refuses("inline_attention", "prefix=-2 is negative", prefix=-2)


ENDS = [
    (torch.tensor([1, 3, 6]), r"{}=\[1, 3, 6\] does not rise from 0 to the 6 packed tokens"),
    (torch.tensor([0, 4, 3, 6]), r"{}=\[0, 4, 3, 6\] does not rise from 0"),
    (torch.tensor([0, 3, 5]), r"{}=\[0, 3, 5\] does not rise from 0 to the 6"),
    (torch.tensor([0, 3, 7]), r"{}=\[0, 3, 7\] does not rise from 0 to the 6"),
    (torch.tensor([0.0, 6.0]), r"{} is torch.float32 of shape \(2,\); give a 1-d int32"),
    (torch.tensor([0]), r"{} is torch.int64 of shape \(1,\); give a 1-d int32"),
    (torch.tensor([[0, 6]]), r"{} is torch.int64 of shape \(1, 2\); give a 1-d int32"),
]


@every
@pytest.mark.parametrize(("ends", "match"), ENDS)
def test_ends_of_the_sequences(name: str, ends: Tensor, match: str) -> None:
    more = {"cu_landmarks": torch.tensor([0, 6])} if name == "soft_attention" else {}
    refuses(name, match.format("cu_seqlens"), batch=1, cu_seqlens=ends, **more)


@pytest.mark.parametrize(("ends", "match"), ENDS)
def test_ends_of_the_landmarks(ends: Tensor, match: str) -> None:
    packed = {"cu_seqlens": torch.tensor([0, 6]), "cu_landmarks": ends}
    refuses("soft_attention", match.format("cu_landmarks"), batch=1, **packed)


@every
def test_packed_is_one_row(name: str) -> None:
    packed = {"cu_seqlens": torch.tensor([0, 6])}
    packed |= {"cu_landmarks": torch.tensor([0, 6])} if name == "soft_attention" else {}
    refuses(name, "q has batch size 2 with cu_seqlens; pack", **packed)


@every
def test_packed_needs_no_mask(name: str) -> None:
    packed = {"cu_seqlens": torch.tensor([0, 6]), "key_mask": torch.ones(1, 6, dtype=torch.bool)}
    packed |= {"cu_landmarks": torch.tensor([0, 6])} if name == "soft_attention" else {}
    refuses(name, "key_mask with cu_seqlens; drop", batch=1, **packed)


@every_qkv
def test_packed_queries_are_their_own_keys(name: str) -> None:
    other = {"k": tensor(1, 7, 3, 8), "v": tensor(1, 7, 3, 8), "cu_seqlens": torch.tensor([0, 6])}
    refuses(name, r"k has shape \(1, 7, 3, 8\) but q has \(1, 6, 3, 8\)", batch=1, **other)


@pytest.mark.parametrize(
    ("grids", "match"),
    [
        (None, "grids=None for 2 packed images"),
        ([(2, 1)], r"grids=\[\(2, 1\)\] for 2 packed images; give one"),
        ([(2, 1), (2, 2), (0, 0)], "grids=.* for 2 packed images"),
        ([(2, 1), (2, 1)], r"grids\[1\]=2x1 with prefix=0 makes 2 tokens but there are 4"),
    ],
)
def test_grids_of_packed_images(grids: list[tuple[int, int]] | None, match: str) -> None:
    packed = {"cu_seqlens": torch.tensor([0, 2, 6]), "residual": tensor(2, 24, 3, 3), "grids": grids}
    refuses("inline_attention", match, batch=1, **packed)


def test_residual_of_packed_images() -> None:
    packed = {
        "cu_seqlens": torch.tensor([0, 2, 6]),
        "residual": tensor(1, 24, 3, 3),
        "grids": [(2, 1), (2, 2)],
    }
    refuses("inline_attention", r"residual has shape \(1, 24, 3, 3\); give .*\(2, 24, 3, 3\)", batch=1, **packed)


def test_no_bias_on_packed_sequences() -> None:
    packed = {"cu_seqlens": torch.tensor([0, 2, 6]), "bias": tensor(3, 6, 6)}
    refuses("softmax_attention", "bias with cu_seqlens; one bias cannot fit", batch=1, **packed)


@pytest.mark.parametrize("name", ["linear_attention", "inline_attention"])
@pytest.mark.parametrize("phi", ["softmax", "", "ReLU"])
def test_unknown_feature_map(name: str, phi: str) -> None:
    refuses(name, rf"phi='{phi}' is not a feature map; use one of identity, relu, .*relu_affine", phi=phi)


@pytest.mark.parametrize("name", ["linear_attention", "inline_attention"])
def test_affine_goes_with_its_feature_map(name: str) -> None:
    refuses(name, "phi='relu_affine' with affine=None; affine=", phi="relu_affine")
    refuses(name, "phi='relu' with affine=given", phi="relu", affine=(tensor(8, 8), tensor(8)))


def test_no_landmarks() -> None:
    refuses(
        "soft_attention",
        r"landmarks has shape \(2, 0, 3, 8\); give at least one",
        landmarks=tensor(2, 0, 3, 8),
    )


@pytest.mark.parametrize(
    ("landmark_ends", "counts"),
    [([0, 6, 6], r"\[6, 0\]"), ([0, 6], r"\[6\]"), ([0, 1, 2, 6], r"\[1, 1, 4\]")],
)
def test_every_packed_image_has_landmarks(landmark_ends: list[int], counts: str) -> None:
    packed = {"cu_seqlens": torch.tensor([0, 2, 6]), "cu_landmarks": torch.tensor(landmark_ends)}
    refuses("soft_attention", rf"cu_landmarks gives {counts} landmarks for 2 images; give", batch=1, **packed)


@pytest.mark.parametrize("given", ["cu_seqlens", "cu_landmarks"])
def test_both_ends_or_neither(given: str) -> None:
    refuses("soft_attention", "cu_seqlens and cu_landmarks go together", batch=1, **{given: torch.tensor([0, 6])})


@pytest.mark.parametrize("iterations", [0, -1, True, 2.0, "a", None])
def test_number_of_newton_steps(iterations: object) -> None:
    refuses(
        "soft_attention",
        rf"iterations={iterations!r}; give a whole number of Newton steps, at least one",
        iterations=iterations,
    )


@every
def test_unknown_backend(name: str) -> None:
    refuses(name, "backend='cuda' is not a backend; use one of auto, triton, torch", backend="cuda")


@every
def test_backend_without_a_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "TRITON_OPERATORS", frozenset())
    refuses(name, "backend='triton' but there is no Triton kernel for it; use 'auto' or 'torch'", backend="triton")


@every
def test_unknown_backend_in_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_BACKEND", "nonsense")
    with pytest.raises(ValueError, match=f"^{name}: SIGHTLINE_BACKEND='nonsense' is not a backend; use one of auto"):
        OPERATORS[name](**arguments(name))
    assert OPERATORS[name](**arguments(name), backend="torch").shape == (2, 6, 3, 8)


def test_lengths() -> None:
    assert lengths("op", torch.tensor([0, 2, 2, 7], dtype=torch.int32), 7) == [2, 0, 5]
    assert lengths("op", torch.tensor([0, 0]), 0) == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sums_are_taken_in_float32_or_wider(dtype: torch.dtype) -> None:
    assert accumulate_dtype(dtype) == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    ("bias", "match"),
    [
        (torch.zeros(6, 6, dtype=torch.bool), "bias is torch.bool on cpu; give numbers to add"),
        (torch.zeros(6, 6, device="meta"), "bias is torch.float32 on meta"),
        (torch.zeros(5, 6), r"bias has shape \(5, 6\); it must broadcast to .* = \(2, 3, 6, 6\)"),
        (torch.zeros(1, 2, 3, 6, 6), r"bias has shape \(1, 2, 3, 6, 6\)"),
    ],
)
def test_bias(bias: Tensor, match: str) -> None:
    refuses("softmax_attention", match, bias=bias)


@every
def test_key_mask_on_another_device(name: str) -> None:
    mask = torch.ones(2, 6, dtype=torch.bool, device="meta")
    refuses(name, "key_mask is on meta but k is on cpu", key_mask=mask)


@pytest.mark.parametrize("grid", [6, (2.0, 3.0), "23", (2, 3, 1)])
def test_grid_is_two_whole_numbers(grid: object) -> None:
    refuses("inline_attention", r"grid=.* is not \(height, width\)", residual=tensor(2, 24, 3, 3), grid=grid)


@pytest.mark.parametrize("name", QKV)
def test_ends_of_packed_sequences_are_a_tensor(name: str) -> None:
    refuses(name, r"cu_seqlens=\[0, 6\]; give a 1-d int32 tensor", batch=1, cu_seqlens=[0, 6])


@pytest.mark.parametrize("name", ["linear_attention", "inline_attention"])
@pytest.mark.parametrize("shapes", [((8, 7), (8,)), ((3, 8, 8), (6, 3, 8)), ((2, 8, 8), (8,))])
def test_affine_shapes(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    affine = tuple(tensor(*shape) for shape in shapes)
    refuses(name, "affine has shapes", phi="relu_affine", affine=affine)


@pytest.mark.parametrize("normalized", [None, 1, "yes"])
def test_normalized_is_a_choice(normalized: object) -> None:
    refuses("soft_attention", f"normalized={normalized!r}; give False for SOFT", normalized=normalized)


@every
def test_arrays_are_not_tensors(name: str) -> None:
    refuses(name, "v is a ndarray; give a torch tensor", v=tensor(2, 6, 3, 8).numpy())


@pytest.mark.parametrize("eps", [0.0, -1e-6, float("nan"), True, "a", None])
def test_eps_is_positive(eps: object) -> None:
    refuses("linear_attention", f"eps={eps!r}; give a positive number", eps=eps)


@every
@pytest.mark.parametrize("position", [0, 1, 2])
def test_sparse_tensors(name: str, position: int) -> None:
    argument = list(arguments(name))[position]
    sparse = tensor(2, 6, 3, 8).to_sparse()
    refuses(name, rf"{argument} is of layout torch.sparse_coo; give a dense tensor", **{argument: sparse})


@every
def test_key_mask_is_a_dense_tensor(name: str) -> None:
    refuses(name, "key_mask is a list; give a torch tensor", key_mask=[[True] * 6] * 2)
    sparse = torch.ones(2, 6, dtype=torch.bool).to_sparse()
    refuses(name, "key_mask is of layout torch.sparse_coo; give a dense tensor", key_mask=sparse)


@pytest.mark.parametrize(("name", "argument"), [("softmax_attention", "bias"), ("inline_attention", "residual")])
def test_other_arguments_are_tensors(name: str, argument: str) -> None:
    refuses(name, f"{argument} is a list; give a torch tensor", **{argument: [0.0]})


def test_filters_are_a_tensor() -> None:
    with pytest.raises(ValueError, match=r"^headwise_conv: weight is a list; give a torch tensor"):
        headwise_conv(tensor(2, 6, 3, 8), [[0.0]], (2, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["softmax_attention", "inline_attention", "soft_attention"])
@pytest.mark.parametrize(
    ("scale", "shown"), [("a", "'a'"), (True, "True"), (1j, "1j"), (torch.ones(2, 1), r"tensor\(\[\[1.\], \[1.\]\]\)")]
)
def test_scale_is_a_number(name: str, scale: object, shown: str) -> None:
    refuses(name, rf"scale={shown}; give a number", scale=scale)


@pytest.mark.parametrize("name", ["softmax_attention", "inline_attention", "soft_attention"])
@pytest.mark.parametrize("scale", [1, 0.5, np.float32(0.5), np.float64(0.5)])
def test_kinds_of_scales(name: str, scale: float) -> None:
    assert OPERATORS[name](**arguments(name), scale=scale).shape == (2, 6, 3, 8)


def test_soft_has_no_default_scale_to_ask_for() -> None:
    refuses("soft_attention", "scale=None; give a number", scale=None)


@pytest.mark.parametrize("prefix", [True, "a", None, 1.0])
def test_prefix_is_a_whole_number(prefix: object) -> None:
    refuses("inline_attention", f"prefix={prefix!r}; give a whole number of leading tokens", prefix=prefix)


@pytest.mark.parametrize("name", ["softmax_attention", "inline_attention", "soft_attention"])
def test_checks_of_numbers_are_traced(name: str) -> None:
    """A scale that changes from call to call is a symbol for the compiler."""

    def function(scale: float) -> Tensor:
        return OPERATORS[name](**usual, scale=scale)

    usual = arguments(name) | {n: torch.randn(2, 6, 3, 8) for n in ("q", "v")}
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for scale in (0.5, 0.25):
        torch.testing.assert_close(compiled(scale), function(scale))
