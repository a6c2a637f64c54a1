"""Feature maps by name."""

import pytest
import torch

from sightline.ops.feature_maps import NAMES, apply_feature_map, check_feature_map, hide, key_features

from .brute_force import PHIS, affine, assert_close, assert_same, feature, tokens

KNOWN = {  # at -2, 0 and 3
    "identity": [-2.0, 0.0, 3.0],
    "relu": [0.0, 0.0, 3.0],
    "leaky_relu": [-0.02, 0.0, 3.0],
    "elu1": [0.1353352832, 1.0, 4.0],
    "exp": [0.6703200460, 1.0, 1.8221188004],
}


def test_every_name_is_tested() -> None:
    assert set(NAMES) == set(PHIS)
    assert set(KNOWN) | {"relu_affine"} == set(PHIS)


@pytest.mark.parametrize("phi", KNOWN)
def test_known_values(phi: str) -> None:
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64).reshape(1, 3, 1, 1)
    expected = torch.tensor(KNOWN[phi], dtype=torch.float64).reshape(1, 3, 1, 1)
    torch.testing.assert_close(apply_feature_map(x, phi), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("phi", KNOWN)
def test_values_and_gradients(phi: str) -> None:
    assert_same(lambda x: apply_feature_map(x, phi), lambda x: feature(x, phi), 3 * tokens(2, 5, 3, 8))


def test_affine_values_and_gradients() -> None:
    assert_same(
        lambda x, w, b: apply_feature_map(x, "relu_affine", (w, b)),
        lambda x, w, b: feature(x, "relu_affine", w, b),
        *(tokens(2, 5, 3, 8), *affine(3, 8)),
    )


def test_affine_shared_by_the_heads() -> None:
    x, weight, bias = tokens(2, 5, 3, 8), tokens(8, 8), tokens(8)
    expected = feature(x, "relu_affine", weight.expand(3, 8, 8), bias.expand(3, 8))
    assert_close(apply_feature_map(x, "relu_affine", (weight, bias)), expected, 1e-12)


def test_affine_of_another_dtype_follows_the_tokens() -> None:
    weight, bias = affine(3, 8)
    assert apply_feature_map(tokens(2, 5, 3, 8).float(), "relu_affine", (weight, bias)).dtype == torch.float32


def test_hidden_tokens_are_zero_whatever_they_hold() -> None:
    hidden = torch.tensor([[False, True, False]])[:, :, None, None]
    k = tokens(1, 3, 2, 8)
    dirty = k.masked_fill(hidden, float("inf")).requires_grad_()
    features = key_features(dirty, "exp", None, hidden)
    features.sum().backward()
    assert torch.equal(features[:, 1], torch.zeros(1, 2, 8))
    assert_close(features[:, ::2].detach(), torch.exp(0.2 * k[:, ::2]), 1e-12)
    assert torch.equal(dirty.grad[:, 1], torch.zeros_like(k[:, 1]))
    assert dirty.grad.isfinite().all()
    assert hide(k, None) is k


@pytest.mark.parametrize("phi", KNOWN)
def test_a_plain_map_takes_no_affine(phi: str) -> None:
    check_feature_map("op", phi, None, 3, 8)
    with pytest.raises(ValueError, match=rf"^op: phi='{phi}'.*affine"):
        check_feature_map("op", phi, affine(3, 8), 3, 8)


def test_relu_affine_needs_its_matrix() -> None:
    check_feature_map("op", "relu_affine", affine(3, 8), 3, 8)
    with pytest.raises(ValueError, match=r"^op: phi='relu_affine'.*affine=None"):
        check_feature_map("op", "relu_affine", None, 3, 8)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"^op: phi='cosine'.*identity"):
        check_feature_map("op", "cosine", None, 3, 8)
