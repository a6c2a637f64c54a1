"""float16 training with a loss scale that overflows: the gradients show it, and the step is skipped."""

import pytest
import torch
from torch import Tensor, nn

from sightline.ops import inline_attention, linear_attention

from .cases import DEVICE


def _inline(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    residual = torch.ones(1, 16, 3, 3, device=DEVICE, dtype=q.dtype)
    return inline_attention(q, k, v, residual=residual, grid=(3, 4), backend="triton")


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention(q, k, v, phi="elu1", backend="triton")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter runs on
@pytest.mark.parametrize("attention", [_inline, _linear])
def test_overflow_skips_the_step_and_halves_the_scale(attention: object) -> None:
    projection = nn.Linear(16, 48, device=DEVICE)
    optimizer = torch.optim.SGD(projection.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**28)
    x = torch.randn(1, 12, 16, device=DEVICE)
    before = projection.weight.detach().clone()
    scales = []
    for _ in range(28):
        q, k, v = projection(x).half().view(1, 12, 3, 2, 8).unbind(2)
        loss = attention(q, k, v).float().square().mean()  # type: ignore[operator]
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        finite = all(p.grad.isfinite().all() for p in projection.parameters() if p.grad is not None)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if finite:
            break
        assert torch.equal(projection.weight, before)
        assert scales[-1] == 2.0 ** (28 - len(scales))
    assert len(scales) > 1
    assert finite
    assert not torch.equal(projection.weight, before)
    assert projection.weight.isfinite().all()
