"""Masking: what is left of the keys, against attention that never had the others; and the table."""

import pytest
import torch
from torch import Tensor

from sightline.analysis.capture import attention_blocks
from sightline.analysis.masking import Labelled, Mask, accuracy, left_over, masked, study_masking
from sightline.layers.core import Place

from ..models.tiny import every_family, image, tiny
from .blocks import core_of

GRID = (4, 5)


def without(mechanism: str, q: Tensor, k: Tensor, keep: Tensor) -> Tensor:
    """The weights (H, M) of one query where the other keys do not exist."""
    core = core_of(mechanism, 8, 2)
    place = Place(GRID, torch.zeros(1, 20, 8, dtype=q.dtype))
    whole = torch.zeros(2, 20, dtype=q.dtype)
    whole[:, keep] = core.rows(q[None], k[None, keep], torch.tensor([0]), place)[0, :, 0]
    return whole


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "linear(phi=elu1)", "inline(residual=false)"])
def test_the_rest_is_what_the_mechanism_makes_of_fewer_keys(mechanism: str) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 4, dtype=torch.float64), torch.randn(20, 2, 4, dtype=torch.float64)
    core = core_of(mechanism, 8, 2)
    weights = core.rows(q[None], k[None], torch.tensor([0]), Place(GRID, torch.zeros(1, 20, 8)))
    hidden = Mask(3).hidden(torch.tensor([7]), GRID, torch.arange(20), GRID)
    assert int(hidden.sum()) == 9
    expected = without(mechanism, q, k, ~hidden[0, 0])
    torch.testing.assert_close(left_over(core, weights, hidden)[0, :, 0], expected, rtol=1e-9, atol=1e-12)


def test_rows_without_a_sum_lose_the_terms() -> None:
    core = core_of("soft", 8, 2)
    weights = torch.rand(1, 2, 1, 20)
    hidden = Mask(3).hidden(torch.tensor([0]), GRID, torch.arange(20), GRID)
    torch.testing.assert_close(left_over(core, weights, hidden), weights.masked_fill(hidden[:, None], 0))


def test_random_keys_are_as_many_and_never_the_class_token() -> None:
    places, keys = torch.arange(-1, 20), torch.arange(-1, 20)
    local = Mask(3).hidden(places, GRID, keys, GRID)
    drawn = Mask(3, random=True).hidden(places, GRID, keys, GRID, 6)
    assert drawn.shape == (6, 21, 21)
    assert (drawn.sum(-1) == local.sum(-1)).all()
    assert not drawn[..., 0].any()
    assert not (drawn[0] == drawn[1]).all()
    again = Mask(3, random=True).hidden(places, GRID, keys, GRID, 6)
    torch.testing.assert_close(drawn, again)
    assert local.sum(-1)[0].tolist()[:3] == [0, 4, 6]  # no place, a corner, an edge


@every_family
@torch.no_grad()
def test_a_mask_of_nothing_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tiny(family), image(64, 80)
    before = model(x)
    monkeypatch.setattr(Mask, "hidden", lambda self, places, grid, keys, *_: torch.zeros(1, len(places), len(keys)) > 0)
    with masked(model, Mask(3)):
        torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)


@every_family
@torch.no_grad()
def test_masks_act_and_go(family: str) -> None:
    model, x = tiny(family), image(64, 80)
    before = model(x)
    with masked(model, Mask(3)):
        local = model(x)
        torch.testing.assert_close(model(x[:1]), local[:1], rtol=1e-4, atol=1e-5)  # images stay apart
    with masked(model, Mask(3, random=True)):
        random = model(x)
    assert not torch.allclose(local, before, atol=1e-4)
    assert not torch.allclose(random, local, atol=1e-4)
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@torch.no_grad()
def test_a_whole_block_against_a_loop_over_queries() -> None:
    model, tokens = tiny("deit", attention="softmax", depths=1), torch.randn(2, 21, 16)
    attention = model.blocks[0].attn
    q, k, v = (t.unflatten(-1, (2, 8)) for t in attention.qkv(tokens).chunk(3, -1))
    expected = torch.zeros(2, 21, 2, 8)
    near = Mask(3).hidden(torch.arange(-1, 20), GRID, torch.arange(-1, 20), GRID)[0]
    for image_number in range(2):
        for i in range(21):
            keep = ~near[i]
            scores = torch.einsum("hd,mhd->hm", q[image_number, i], k[image_number, keep]) * 8**-0.5
            expected[image_number, i] = torch.einsum("hm,mhd->hd", scores.softmax(-1), v[image_number, keep])
    with masked(model, Mask(3)):
        found = attention(tokens, GRID, 1)
    torch.testing.assert_close(found, attention.proj(expected.flatten(2)), rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_a_model_that_ignores_its_neighbours_loses_nothing() -> None:
    """With values that are all the same, any weights that sum to one give the same output."""
    model, x = tiny("deit", attention="softmax"), image(64, 80, batch=8)
    for name in attention_blocks(model):
        attention = dict(model.named_modules())[name]
        attention.qkv.weight[-16:] = 0  # v is its bias everywhere
    labels = model(x).argmax(-1)
    subject = Labelled("a model", model, lambda: [(x[:5], labels[:5]), (x[5:], labels[5:])])
    study = study_masking([subject], (3, 5))
    (found,) = study.facts["subjects"]
    assert found["top1"] == 100
    assert found["local"] == found["random"] == [100.0, 100.0]
    assert study.rows == [["a model", "8", *["100.00"] * 5]]


@torch.no_grad()
def test_a_model_that_only_sees_its_neighbours_loses_them() -> None:
    model, x = tiny("deit", attention="none", global_pool="avg"), image(64, 80, batch=8)
    labels = model(x).argmax(-1)
    subject = Labelled("a model", model, lambda: [(x, labels)])
    assert accuracy(subject, None) == (100.0, 8)
    with masked(model, Mask(3)):
        hidden = model(x)
    with masked(model, Mask(3, random=True)):
        drawn = model(x)
    whole = model(x)
    assert (hidden - whole).norm() > 1.2 * (drawn - whole).norm()


def test_heads_of_another_kind_are_rejected() -> None:
    model, x = tiny("deit", attention="enhanced"), image(64, 80, batch=1)
    with masked(model, Mask(3)), pytest.raises(ValueError, match="cannot be masked"):
        model(x)
