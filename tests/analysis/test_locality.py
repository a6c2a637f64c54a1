"""Locality: even attention has 9 / N of its mass in a 3x3 neighbourhood, no attention all of it."""

import pytest
import torch

from sightline.analysis.capture import capture
from sightline.analysis.locality import inner_tokens, measure_locality, near_keys, study_locality
from sightline.analysis.study import Subject

from ..models.tiny import every_family, image, tiny
from .blocks import block_of


@pytest.mark.parametrize("mechanism", ["softmax", "inline(residual=false)"])
@pytest.mark.parametrize("size", [3, 5])
def test_even_attention(mechanism: str, size: int) -> None:
    q = torch.zeros(1 + 7 * 9, 2, 4)  # a class token takes part and has no place
    (found,) = measure_locality([block_of(mechanism, q, torch.randn_like(q), (7, 9), prefix=1)], size)
    assert found.mass == pytest.approx([size * size / 64] * 2)
    assert found.even == pytest.approx(size * size / 64)


def test_no_attention_is_all_local() -> None:
    q = torch.zeros(16, 2, 4)
    assert measure_locality([block_of("none", q, q, (4, 4))])[0].mass == [1.0, 1.0]


def test_a_map_without_inner_places_counts_the_neighbours_there_are() -> None:
    q = torch.zeros(4, 1, 4)
    (found,) = measure_locality([block_of("softmax", q, q, (2, 2))])
    assert found.mass == pytest.approx([1.0])
    assert found.even == 1


def test_signed_weights_stay_signed() -> None:
    q = torch.ones(25, 1, 1) * 50
    k = torch.zeros(25, 1, 1)
    k[12] = -1  # the key in the middle weighs below zero
    block = block_of("inline(residual=false)", q, k, (5, 5))
    assert inner_tokens(block, 5, 9).tolist() == [12]
    assert measure_locality([block], 1)[0].mass[0] < 1 / 25
    everything = measure_locality([block], 5)[0]
    assert everything.mass == pytest.approx([1.0], abs=1e-5)


def test_neighbours() -> None:
    near = near_keys(torch.tensor([0, 5, -1]), (3, 4), (3, 4), 1, 3)
    assert near[0].nonzero().flatten().tolist() == [1, 2, 5, 6]
    assert near[1].nonzero().flatten().tolist() == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert not near[2].any()
    coarse = near_keys(torch.tensor([0, 63]), (8, 8), (4, 4), 0, 1)
    assert coarse.nonzero().tolist() == [[0, 0], [1, 15]]


def test_inner_tokens_are_inside() -> None:
    block = block_of("softmax", torch.zeros(31, 1, 2), torch.zeros(31, 1, 2), (5, 6), prefix=1)
    assert inner_tokens(block, 3, 100).tolist() == [8, 9, 10, 11, 14, 15, 16, 17, 20, 21, 22, 23]
    assert len(inner_tokens(block, 3, 5)) == 5


@every_family
@torch.no_grad()
def test_every_family(family: str) -> None:
    model, pictures = tiny(family), [image(64, 80, batch=1)[0] for _ in range(2)]
    study = study_locality([Subject("a model", model, pictures)])
    (subject,) = study.facts["subjects"]
    assert len(subject["layers"]) == len(study.rows) >= 3
    assert all(0 < layer["even"] <= 1 for layer in subject["layers"])
    has_residual = any(layer["residual"] is not None for layer in subject["layers"])
    assert has_residual == any(block.mechanism == "inline" for block in capture(model, pictures[0]))
