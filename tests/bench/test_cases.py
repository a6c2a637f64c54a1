"""Shapes and models as data, and how a shape is written."""

from dataclasses import replace

import pytest

from sightline.bench.cases import CPU_CASES, MODEL_CASES, OP_CASES, TIMM_BASELINES, parse_shape
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


def test_the_table() -> None:
    assert [case.tokens for case in OP_CASES.values()] == [197, 577, 1601, 4097, 16385, 3136, 784, 4096, 16384, 65536]
    assert {case.model for case in (*MODEL_CASES, *CPU_CASES)} | TIMM_BASELINES.keys() <= VARIANTS.keys()
    assert parse_shape("deit_tiny_224") is OP_CASES["deit_tiny_224"]
