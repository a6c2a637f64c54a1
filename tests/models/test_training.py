"""What training asks of a model: gradients, saved memory, groups of parameters, dropout."""

import pytest
import torch
from timm.layers import DropPath
from timm.models import group_parameters
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from sightline.layers.blocks import PostNormBlock, PreNormBlock
from sightline.layers.conv_blocks import ConvBlock

from .tiny import every_family, fresh, gradients, image, tiny


@every_family
def test_every_parameter_gets_a_gradient(family: str) -> None:
    # Pooled over the places: the class token reads nothing of the last block's local residual.
    model = tiny(family, global_pool="avg").train()
    model(image()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.slow
@every_family
def test_grad_checkpointing_changes_nothing(family: str) -> None:
    model, x = tiny(family), image()
    plain = gradients(model, x)
    model.set_grad_checkpointing()
    calls = []
    blocks = model.blocks if family == "deit" else model.stages[0].blocks
    blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    saved = gradients(model, x)
    assert len(calls) == 2, "the block did not run again in the backward pass"
    for a, b in zip(plain, saved, strict=True):
        assert torch.equal(a, b)
    final, _ = model.forward_intermediates(x)
    assert torch.equal(final, model.forward_features(x))
    model.set_grad_checkpointing(False)
    calls.clear()
    gradients(model, x)
    assert len(calls) == 1


@every_family
@pytest.mark.parametrize("coarse", [False, True])
def test_groups_cover_all_parameters_in_order(family: str, coarse: bool) -> None:
    model = fresh(family)
    layer = group_parameters(model, model.group_matcher(coarse=coarse), reverse=True)
    names = [name for name, _ in model.named_parameters()]
    assert set(layer) == set(names)
    body = [layer[name] for name in names if not name.startswith("head")]
    assert body == sorted(body)
    assert layer[f"{model.default_cfg['first_conv']}.weight"] == 0
    assert layer["head.weight"] == max(layer.values()) >= body[-1] > 0
    assert len(set(body)) >= len(model.feature_info)
    if not coarse:
        blocks = [n for n in names if n.endswith("attn.proj.weight")]
        assert len({layer[name] for name in blocks}) == len(blocks), "two blocks share a layer"


@every_family
def test_layer_decay(family: str) -> None:
    model = fresh(family)
    groups = param_groups_layer_decay(
        model, weight_decay=0.05, no_weight_decay_list=model.no_weight_decay(), layer_decay=0.5
    )
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    stem = model.get_parameter(f"{model.default_cfg['first_conv']}.weight")
    assert scale[id(stem)] == min(scale.values()) < 0.5
    assert scale[id(model.head.weight)] == 1


@every_family
@pytest.mark.parametrize("attention", [None, "softmax", "linear(phi=relu_affine)"])
def test_weight_decay(family: str, attention: str | None) -> None:
    model = fresh(family, attention=attention)
    parameters = dict(model.named_parameters())
    listed = model.no_weight_decay()
    assert listed <= parameters.keys()
    assert (len(listed) > 0) == (
        family not in ("cswin", "hybrid") and (family != "swin" or attention in (None, "softmax"))
    )
    plain, decayed = param_groups_weight_decay(model, 0.05, no_weight_decay_list=listed)
    assert (plain["weight_decay"], decayed["weight_decay"]) == (0, 0.05)
    for name, parameter in parameters.items():
        table = any(word in name for word in ("pos_embed", "position_bias", "cls_token"))
        exempt = parameter.ndim <= 1 or name.endswith("bias") or table
        group = plain if exempt else decayed
        assert any(parameter is other for other in group["params"]), name


@pytest.mark.slow
@every_family
def test_drop_path_is_for_training_only(family: str) -> None:
    model, x = tiny(family, drop_path_rate=0.5), image(batch=8)
    assert torch.equal(model(x), tiny(family)(x))
    model.train()
    freeze_batch_norm(model)
    assert not torch.equal(model(x), model(x))
    still = tiny(family).train()
    freeze_batch_norm(still)
    assert torch.equal(still(x), still(x))


@every_family
def test_drop_path_rises_to_its_rate_in_every_branch(family: str) -> None:
    model = fresh(family, drop_path_rate=0.4)
    branches = [1 if isinstance(module, ConvBlock) else 2 for module in model.modules()
                if isinstance(module, PreNormBlock | PostNormBlock | ConvBlock)]  # fmt: skip
    rates = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
    last = len(branches) - 1
    expected = [0.4 * i / last for i, count in enumerate(branches) if i for _ in range(count)]
    assert rates == pytest.approx(expected)


def freeze_batch_norm(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("rate", ["drop_rate", "proj_drop_rate", "pos_drop_rate"])
def test_dropout_is_for_training_only(family: str, rate: str) -> None:
    model, x = tiny(family, **{rate: 0.5}), image()
    assert torch.equal(model(x), tiny(family)(x))
    model.train()
    freeze_batch_norm(model)
    assert not torch.equal(model(x), model(x))
