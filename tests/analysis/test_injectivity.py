"""Injectivity: the toy, constructed confusions, and certificates with pairs that are checked."""

from typing import Any

import pytest
import torch

from sightline.analysis.capture import capture
from sightline.analysis.certificate import INJECTIVE, NOT_INJECTIVE, UNKNOWN, certify, study_certificates
from sightline.analysis.confusions import Thresholds, count_confusions, pairs, spread_tokens, study_confusions
from sightline.analysis.study import Subject
from sightline.analysis.toy import PUBLISHED, study_toy, toy_scores

from ..models.tiny import image, tiny
from .blocks import block_of


def test_the_toy_has_the_printed_scores() -> None:
    for name, scores in toy_scores().items():
        printed = torch.tensor(PUBLISHED[name], dtype=scores.dtype)
        torch.testing.assert_close(scores, printed, rtol=0, atol=0.01)
        torch.testing.assert_close(scores.sum(1), torch.ones(4, dtype=scores.dtype))
    study = study_toy()
    assert len(study.rows) == 12
    assert max(float(row[-1]) for row in study.rows) <= 0.01


def test_the_default_scale_of_the_operators_misses_the_fourth_query() -> None:
    scores = toy_scores(2**-0.5)["softmax"]
    assert float((scores - torch.tensor(PUBLISHED["softmax"])).abs().max()) > 0.01


def test_constructed_duplicates_are_counted() -> None:
    queries = torch.tensor([[[1.0, 0], [2, 0], [4, 0], [0, 1]]])
    rows = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [0.4999, 0.5001], [0.9, 0.1]]])
    confused, different = pairs(queries, rows, Thresholds(0.4, 1e-3))
    assert (int(confused), int(different)) == (3, 6)
    confused, different = pairs(queries, rows, Thresholds(0.6, 1e-3))  # 1 and 2, 2 and 4 are half as long
    assert (int(confused), int(different)) == (1, 4)
    assert int(pairs(queries, rows, Thresholds(0.4, 1e-5))[0]) == 1  # only exact ones
    zeros = pairs(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2), Thresholds())
    assert (int(zeros[0]), int(zeros[1])) == (0, 0)


@pytest.mark.parametrize(("mechanism", "expected"), [("linear", 6), ("softmax", 0), ("inline(residual=false)", 0)])
def test_collinear_queries_confuse_only_linear_attention(mechanism: str, expected: int) -> None:
    torch.manual_seed(0)
    direction = torch.rand(4) + 0.1
    q = torch.stack([direction * length for length in (1.0, 2.0, 4.0, 8.0)])[:, None]
    block = block_of(mechanism, q, torch.rand(4, 1, 4) * 3, (2, 2))
    (found,) = count_confusions([block], Thresholds(0.4, 1e-4))
    assert (found.confused, found.centred, found.different) == (expected, expected, 6)


def test_nearly_even_attention_is_confused_only_before_centring() -> None:
    torch.manual_seed(0)
    q = torch.randn(9, 1, 4) * 1e-3
    (found,) = count_confusions([block_of("softmax", q, torch.randn(9, 1, 4), (3, 3))])
    assert found.confused == found.different > 20
    assert found.centred == 0


@pytest.mark.parametrize("mechanism", ["hydra", "enhanced", "performer"])
@torch.no_grad()
def test_mechanisms_with_heads_of_their_own(mechanism: str) -> None:
    blocks = capture(tiny("deit", attention=mechanism), image(64, batch=1)[0])
    assert len(count_confusions(blocks)) == 3


def test_tokens_are_spread_over_the_places() -> None:
    block = block_of("softmax", torch.zeros(17, 1, 2), torch.zeros(17, 1, 2), (4, 4), prefix=1)
    assert spread_tokens(block, 100).tolist() == list(range(1, 17))
    assert spread_tokens(block, 4).tolist() == [1, 5, 9, 13]


def certificate(mechanism: str, k: torch.Tensor, **parameters: torch.Tensor) -> Any:
    torch.manual_seed(1)
    block = block_of(mechanism, torch.randn(len(k), 1, k.shape[1]), k[:, None], (1, len(k)))
    if parameters:
        block.parts[0].core.feature_map.load_state_dict(parameters)  # type: ignore[union-attr]
    return certify(block)[0]


@pytest.mark.parametrize("mechanism", ["softmax", "inline(residual=false)", "inline(residual=false,phi=leaky_relu)"])
def test_full_rank_is_injective(mechanism: str) -> None:
    torch.manual_seed(0)
    found = certificate(mechanism, torch.randn(12, 4))
    assert (found.rank, found.columns, found.verdict, found.queries) == (5, 5, INJECTIVE, None)
    keys = torch.cat([torch.eye(4), torch.zeros(1, 4)])
    small = certificate("softmax", keys).smallest  # [I, 1; 0, 1]
    expected = torch.linalg.svdvals(torch.cat([keys, torch.ones(5, 1)], 1).double())[-1]
    assert small == pytest.approx(float(expected))


@pytest.mark.parametrize("phi", ["relu", "leaky_relu", "elu1", "exp", "identity"])
def test_linear_attention_always_has_a_pair(phi: str) -> None:
    torch.manual_seed(0)
    found = certificate(f"linear(phi={phi})", torch.randn(12, 4))
    assert found.verdict == NOT_INJECTIVE
    assert found.distance > 0.1
    assert found.difference < 1e-9


def test_affine_maps_have_a_pair_too() -> None:
    torch.manual_seed(0)
    affine = {"weight": torch.randn(1, 4, 4), "bias": torch.randn(1, 4)}
    for mechanism in ("linear(phi=relu_affine)", "inline(phi=relu_affine,residual=false)"):
        found = certificate(mechanism, torch.randn(12, 4), **affine)
        assert found.verdict == NOT_INJECTIVE
        assert found.distance > 0.01
        assert found.difference < 1e-9
    singular = {"weight": torch.zeros(1, 4, 4), "bias": torch.ones(1, 4)}
    assert certificate("linear(phi=relu_affine)", torch.randn(12, 4), **singular).queries is None


@pytest.mark.parametrize("mechanism", ["softmax", "inline(residual=false)", "inline(residual=false,phi=exp)"])
def test_keys_in_a_plane_do_not_tell_all_queries_apart(mechanism: str) -> None:
    torch.manual_seed(0)
    keys = torch.randn(12, 4)
    keys[:, 3] = 0.5  # the last column is the constant one
    found = certificate(mechanism, keys)
    assert (found.rank, found.verdict) == (4, NOT_INJECTIVE)
    assert found.distance > 0.1
    assert found.difference < 1e-9


def test_relu_inline_forgets_what_is_below_zero() -> None:
    torch.manual_seed(0)
    found = certificate("inline(phi=relu,residual=false)", torch.randn(12, 4))
    assert (found.rank, found.verdict) == (5, NOT_INJECTIVE)
    assert found.difference < 1e-12
    first, second = (torch.tensor(query) for query in found.queries)
    assert int((first != second).sum()) == 1


def test_no_statement_about_other_mechanisms() -> None:
    found = certificate("performer", torch.randn(12, 4))
    assert (found.verdict, found.queries) == (UNKNOWN, None)


@pytest.mark.parametrize("family", ["swin", "cswin", "pvt", "deit"])
@pytest.mark.parametrize("mechanism", ["softmax", "linear"])
@torch.no_grad()
def test_pairs_hold_in_windows_and_on_reduced_maps(family: str, mechanism: str) -> None:
    for block in capture(tiny(family, attention=mechanism), image(64, 80, batch=1)[0]):
        for found in certify(block):
            if found.queries is not None:
                assert found.difference is not None
                assert found.difference < 1e-6
            elif mechanism == "linear":
                pytest.fail(f"{block.name} has no pair")


@torch.no_grad()
def test_studies() -> None:
    pictures = [image(64, batch=1)[0] for _ in range(3)]
    subjects = [Subject(name, tiny("deit", attention=name), pictures) for name in ("linear", "inline")]
    study = study_confusions(subjects)
    for subject in study.facts["subjects"]:
        assert len(subject["confused"]) == 3
        assert sum(subject["confused"]) == sum(sum(block["confused"]) for block in subject["blocks"])
    assert [len(axis.patches) > 0 for axis in study.figures["confusions"].axes] == [True, True]
    certificates = study_certificates(subjects)
    assert len(certificates.rows) == 6
    assert {row[6] for row in certificates.rows[:3]} == {NOT_INJECTIVE}
