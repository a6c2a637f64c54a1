"""Updates as CUDA graphs: the same losses and weights as without, and no graph where none can be made."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from sightline.engine.recording import WARM, Pass, Recorder, Replay


def train(model: nn.Module, recorder: Recorder | None, batches: list[Tensor]) -> list[float]:
    """The losses of one update per batch."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []

    def work(batch: Tensor) -> Tensor:
        loss = model(batch).square().mean()
        loss.backward()
        return loss.detach()

    for batch in batches:
        losses.append((recorder(work, batch) if recorder else work(batch)).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def copies(record: object, device: str = "cpu") -> tuple[nn.Module, nn.Module, Recorder, list[str]]:
    """Two models alike, a recorder for the second, and what it prints."""
    torch.manual_seed(0)
    one, two = (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).to(device) for _ in range(2))
    two.load_state_dict(one.state_dict())
    lines: list[str] = []
    return one, two, Recorder([*two.parameters()], lines.append, record), lines  # type: ignore[arg-type]


def test_batches_of_another_shape_are_not_replayed() -> None:
    replayed = []

    def record(work: Pass, batch: Tensor, parameters: Sequence[nn.Parameter]) -> Replay:
        def replay(given: Tensor) -> tuple[Tensor, list[Tensor | None]]:
            assert all(parameter.grad is None for parameter in parameters)
            replayed.append(tuple(given.shape))
            loss = work(given)
            gradients = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None
            return loss, gradients

        return replay

    one, two, recorder, _ = copies(record)
    batches = [torch.randn(size, 8) for size in (6, 6, 6, 6, 5, 6)]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert replayed == [(6, 8), (6, 8)]
    assert WARM == 3


def test_a_graph_that_cannot_be_made() -> None:
    def record(work: Pass, batch: Tensor, parameters: Sequence[nn.Parameter]) -> Replay:
        work(batch)  # leaves gradients
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    one, two, recorder, lines = copies(record)
    batches = [torch.randn(6, 8) for _ in range(WARM + 3)]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert len(lines) == 1
    assert "no CUDA graph of an update (operation not permitted" in lines[0]


@pytest.mark.gpu
def test_same_bits_as_without() -> None:
    one, two, recorder, lines = copies(None, "cuda")
    batches = [torch.randn(6, 8, device="cuda") for _ in range(WARM + 6)]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert recorder.replay is not None
    assert not lines
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
