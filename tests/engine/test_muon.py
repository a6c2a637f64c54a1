"""Muon of all matrices of a shape at once: the updates of timm's, and the same after a state was loaded."""

import copy
from typing import Any

import pytest
import torch
from timm.optim import Muon
from torch import nn

from sightline.engine.muon import WARM, BatchedMuon


def model(device: str = "cpu") -> nn.Module:
    """Two convolutions of one shape, wide and tall matrices, biases and a norm."""
    torch.manual_seed(0)
    parts = [nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(32, 8), nn.Linear(8, 32), nn.Linear(32, 8)).to(device)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.device)
    optimizer.step()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "options",
    [
        {"nesterov": True, "momentum": 0.95},
        {"ns_coefficients": "polar_express", "ns_steps": 7, "safety_factor": 1.01},
        {"adjust_lr_fn": None, "weight_decay": 0.0, "fallback_lr_scale": 0.1},
        {"algo": "adamuon"},
        {"conv_mode": "batched"},
        {"scale_eps": True},
    ],
)
def test_updates_of_timm(options: dict[str, Any], device: str) -> None:
    first, second = model(device), model(device)
    options = {"lr": 0.02, "weight_decay": 0.05, **options}
    one, two = Muon(first.parameters(), **options), BatchedMuon(second.parameters(), **options)
    for seed in range(WARM + 3):
        for group in (*one.param_groups, *two.param_groups):
            group["lr"] = 0.02 / (1 + seed)  # as a schedule does
        update(first, one, seed)
        update(second, two, seed)
    start = model(device)
    for before, p, q in zip(start.parameters(), first.parameters(), second.parameters(), strict=True):
        moved = (p - before).norm()
        assert (q - p).norm() <= 0.02 * moved  # timm's products are of bfloat16
    left_to_timm = options.keys() & {"algo", "conv_mode", "scale_eps"}
    assert bool(two._stacks) != bool(left_to_timm)
    assert (two._products is not None) == (bool(two._stacks) and device == "cuda")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_state_that_is_loaded(device: str) -> None:
    first = model(device)
    one = BatchedMuon(first.parameters(), lr=0.02)
    for seed in range(WARM + 2):
        update(first, one, seed)
    second = copy.deepcopy(first)
    two = BatchedMuon(second.parameters(), lr=0.02)
    update(second, two, 0)  # has stacks of its own before it is loaded
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in (7, 8):
        update(first, one, seed)
        update(second, two, seed)
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_matrix_without_a_gradient_stays() -> None:
    first, second = model(), model()
    one, two = Muon(first.parameters(), lr=0.02), BatchedMuon(second.parameters(), lr=0.02)
    update(first, one, 0)
    update(second, two, 0)
    before = second[4].weight.clone()
    for net, optimizer in ((first, one), (second, two)):
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        net[4].weight.grad = None
        optimizer.step()
    assert torch.equal(second[4].weight, before)
    assert torch.allclose(second[5].weight, first[5].weight, atol=1e-3)
    assert not torch.equal(second[5].weight, model()[5].weight)


def test_gradients_are_kept() -> None:
    net = model()
    optimizer = BatchedMuon(net.parameters(), lr=0.02)
    update(net, optimizer, 0)
    assert all(p.grad is not None for p in net.parameters())


def test_loss_of_a_closure() -> None:
    net = nn.Linear(8, 8)
    optimizer = BatchedMuon(net.parameters(), lr=0.02)

    def closure() -> torch.Tensor:
        loss = net(torch.ones(2, 8)).square().sum()
        loss.backward()
        return loss

    before = net.weight.clone()
    assert optimizer.step(closure) > 0
    assert not torch.equal(net.weight, before)
