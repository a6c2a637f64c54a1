"""Shapes and models as data, and how a shape is written."""

from dataclasses import replace

import pytest

from sightline.bench.cases import CPU_CASES, MODEL_CASES, OP_CASES, TIMM_BASELINES, parse_shape
from sightline.bench.published import PUBLIC_MODELS, PUBLIC_OPS, public_figure, recorded
from sightline.bench.results import Row
from sightline.models.zoo import VARIANTS


@pytest.mark.parametrize(
    ("text", "grid", "prefix"),
    [
        ("2,6,32,1+7x9", (7, 9), 1),
        ("2,6,32,14x14", (14, 14), 0),
        ("2,6,32,196", (14, 14), 0),
        ("2,6,32,197", (14, 14), 1),
        ("2,6,32,200", (10, 20), 0),
        ("2,6,32,3+12", (3, 4), 3),
        ("2, 6, 32, 7", (1, 7), 0),
        ("2,6,32,1", (1, 1), 0),
    ],
)
def test_shapes(text: str, grid: tuple[int, int], prefix: int) -> None:
    case = parse_shape(text)
    assert (case.batch, case.heads, case.dim, case.grid, case.prefix) == (2, 6, 32, grid, prefix)
    assert case.tokens == grid[0] * grid[1] + prefix
    assert replace(parse_shape(str(case)), name=case.name) == case


@pytest.mark.parametrize("text", ["", "2,6,32", "2,6,32,x7", "2,6,32,0", "0,6,32,9", "a,b,c,d", "2,6,32,-4", "deit"])
def test_a_wrong_shape_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="shape: ") as error:
        parse_shape(text)
    assert repr(text) in str(error.value)


def test_the_table_is_that_of_the_published_figures() -> None:
    assert OP_CASES.keys() == PUBLIC_OPS.keys()
    assert {case.name for case in MODEL_CASES} == PUBLIC_MODELS.keys()
    assert [case.tokens for case in OP_CASES.values()] == [197, 577, 1601, 4097, 16385, 3136, 784, 4096, 16384, 65536]
    assert {case.model for case in (*MODEL_CASES, *CPU_CASES)} | TIMM_BASELINES.keys() <= VARIANTS.keys()
    assert parse_shape("deit_tiny_224") is OP_CASES["deit_tiny_224"]


def test_public_figures_are_only_given_for_what_was_measured() -> None:
    assert recorded("op", "deit_tiny_224", "forward", False) == 0.644
    assert recorded("op", "deit_tiny_224", "forward", True) == 0.242
    assert recorded("op", "deit_tiny_224", "forward+backward", True) is None
    assert recorded("op", "2,6,32,9", "forward", False) is None
    assert recorded("model", "inline_deit_tiny 224", "train", False) == 2015
    assert recorded("model", "inline_deit_tiny 224", "train", True) is None
    assert recorded("model", "soft_tiny 224", "forward+backward", False) is None


def test_public_figures_are_shown_next_to_the_same_kind_of_run_only() -> None:
    row = Row("model", "inline_deit_tiny 224", "inline_deit_tiny", "forward", False, "bfloat16", "cuda", 512)
    assert public_figure(row) == 20899
    for change in ({"device": "cpu"}, {"dtype": "float32"}, {"candidate": "inline_deit_tiny none"}):
        assert public_figure(replace(row, **change)) is None
    soft = replace(row, case="soft_tiny 224", candidate="soft_tiny")
    assert public_figure(soft) is None
    assert public_figure(replace(soft, dtype="tf32")) == 3029
