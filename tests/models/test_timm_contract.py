"""What timm promises of a model, on a small member of each family: features, pooling, head, intermediates."""

import pytest
import torch
from torch import nn

from .tiny import (
    CHANNELS,
    CLASSES,
    WITH_CLASS_TOKEN,
    assert_close,
    every_family,
    fresh,
    image,
    last_grid,
    reductions,
    tiny,
)


@every_family
def test_forward_is_features_then_head(family: str) -> None:
    model, x = tiny(family), image()
    assert torch.equal(model.forward_head(model.forward_features(x)), model(x))
    assert model(x).shape == (2, CLASSES)


@every_family
def test_feature_shape(family: str) -> None:
    model = tiny(family)
    height, width = last_grid(family, 96, 64)
    features = model.forward_features(image(96, 64))
    if family in WITH_CLASS_TOKEN:
        assert features.shape == (2, 1 + height * width, CHANNELS[family][-1])
    else:
        assert features.shape == (2, height, width, CHANNELS[family][-1])
    assert model.num_features == model.head_hidden_size == CHANNELS[family][-1]
    assert model.num_prefix_tokens == (family in WITH_CLASS_TOKEN)


@every_family
def test_pre_logits(family: str) -> None:
    model = tiny(family)
    features = model.forward_features(image())
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, CHANNELS[family][-1])
    assert torch.equal(model.get_classifier()(pooled), model.forward_head(features))


@every_family
def test_reset_classifier(family: str) -> None:
    model, x = tiny(family), image()
    pooled = model.forward_head(model.forward_features(x), pre_logits=True)

    model.reset_classifier(0)
    assert model.num_classes == 0
    assert isinstance(model.get_classifier(), nn.Identity)
    assert torch.equal(model(x), pooled)

    model.reset_classifier(0, "")
    assert torch.equal(model(x), model.forward_features(x))

    model.reset_classifier(7, "max")
    assert model(x).shape == (2, 7)
    assert model.get_classifier() is model.head
    assert (model.num_classes, model.head.out_features) == (7, 7)
    assert not model.head.training


@every_family
def test_reset_classifier_follows_the_model(family: str) -> None:
    model = fresh(family).to(torch.bfloat16)
    model.reset_classifier(3)
    assert model.head.weight.dtype == torch.bfloat16
    model.to("meta").reset_classifier(3)
    assert model.head.weight.is_meta


@every_family
def test_no_classes(family: str) -> None:
    model = tiny(family, num_classes=0)
    assert not any(name.startswith("head") for name in model.state_dict())
    assert model(image()).shape == (2, CHANNELS[family][-1])


@pytest.mark.slow
@every_family
def test_global_pool(family: str) -> None:
    x = image()
    features = tiny(family).forward_features(x)
    places = features[:, 1:] if family in WITH_CLASS_TOKEN else features.flatten(1, 2)
    pools = {"avg": places.mean(1), "max": places.amax(1), "": features}
    if family in WITH_CLASS_TOKEN:
        pools["token"] = features[:, 0]
    for pool, expected in pools.items():
        assert_close(tiny(family, num_classes=0, global_pool=pool)(x), expected)


@every_family
@pytest.mark.parametrize("pool", ["catavgmax", "token"])
def test_bad_global_pool(family: str, pool: str) -> None:
    if pool == "token" and family in WITH_CLASS_TOKEN:
        pool = "tokens"
    with pytest.raises(ValueError, match=rf"^global_pool='{pool}'"):
        fresh(family, global_pool=pool)
    model = fresh(family)
    with pytest.raises(ValueError, match=rf"global_pool='{pool}'"):
        model.reset_classifier(3, pool)
    assert model.num_classes == CLASSES


@every_family
def test_intermediates_are_maps_of_every_stage(family: str) -> None:
    model, x = tiny(family), image(96, 64)
    final, maps = model.forward_intermediates(x)
    assert torch.equal(final, model.forward_features(x))
    sizes = [(96 // r, 64 // r) for r in reductions(family)]
    assert [tuple(m.shape) for m in maps] == [(2, c, *s) for c, s in zip(CHANNELS[family], sizes, strict=True)]
    assert [info["num_chs"] for info in model.feature_info] == CHANNELS[family]
    assert [info["reduction"] for info in model.feature_info] == reductions(family)
    for info in model.feature_info:
        model.get_submodule(info["module"])


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("indices", [1, 2, [0], [0, 2], [-1], [-3, -1]])
def test_intermediate_indices(family: str, indices: int | list[int]) -> None:
    model, x = tiny(family), image()
    everything = model.forward_intermediates(x, intermediates_only=True)
    count = len(everything)
    chosen = range(count - indices, count) if isinstance(indices, int) else indices
    for stop_early in (False, True):
        maps = model.forward_intermediates(x, indices, stop_early=stop_early, intermediates_only=True)
        assert len(maps) == len(chosen)
        for got, i in zip(maps, chosen, strict=True):
            assert torch.equal(got, everything[i])


@every_family
def test_stop_early_runs_no_further(family: str) -> None:
    model = tiny(family)
    last = (model.blocks if family == "deit" else model.stages)[-1]
    last.register_forward_hook(lambda *_: pytest.fail("the last part ran"))
    model.forward_intermediates(image(), [0], stop_early=True, intermediates_only=True)


@every_family
def test_intermediate_formats(family: str) -> None:
    model, x = tiny(family), image(64, 96)
    nchw = model.forward_intermediates(x, intermediates_only=True)
    nhwc = model.forward_intermediates(x, output_fmt="NHWC", intermediates_only=True)
    for a, b in zip(nchw, nhwc, strict=True):
        assert torch.equal(a.permute(0, 2, 3, 1), b)
    if family == "deit":
        nlc = model.forward_intermediates(x, output_fmt="NLC", intermediates_only=True)
        for a, b in zip(nhwc, nlc, strict=True):
            assert torch.equal(a.flatten(1, 2), b)
    with pytest.raises(ValueError, match=r"^output_fmt='NCL'"):
        model.forward_intermediates(x, output_fmt="NCL")


@every_family
def test_intermediate_norm(family: str) -> None:
    model, x = tiny(family), image()
    final, maps = model.forward_intermediates(x, norm=True, output_fmt="NHWC")
    places = final[:, 1:] if family in WITH_CLASS_TOKEN else final.flatten(1, 2)
    assert_close(maps[-1].flatten(1, 2), places)
    if family != "pvt":  # which has no final norm
        plain = model.forward_intermediates(x, output_fmt="NHWC", intermediates_only=True)
        assert not torch.allclose(plain[-1], maps[-1], atol=1e-2)
        assert torch.equal(plain[0], maps[0]) == (family != "deit")


def test_prefix_tokens() -> None:
    model, x = tiny("deit"), image()
    final, pairs = model.forward_intermediates(x, norm=True, return_prefix_tokens=True, output_fmt="NLC")
    assert all(prefix.shape == (2, 1, 16) for _, prefix in pairs)
    assert_close(torch.cat([pairs[-1][1], pairs[-1][0]], 1), final)
