"""Updates as CUDA graphs: the same losses and weights as without, and no graph where none can be made."""

import gc
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from sightline.engine.recording import ATTEMPTS, KINDS, WARM, Pass, Recorder, Replay, no_garbage_collection, recordable
from sightline.tasks.classification.loaders import Batch


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
    return one, two, Recorder([*two.parameters()], lines.append, record=record), lines  # type: ignore[arg-type]


class Replayed:
    """Passes that are run again, after some that cannot be recorded; has the shapes of their batches."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.shapes = failures, list[tuple[int, ...]]()

    def __call__(
        self, work: Pass, batch: Tensor, parameters: Sequence[nn.Parameter], buffers: Sequence[Tensor]
    ) -> Replay:
        if self.failures:
            self.failures -= 1
            work(batch)  # leaves gradients
            try:
                raise RuntimeError("operation not permitted\nwhen stream is capturing")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")

        def replay(given: Tensor) -> tuple[Tensor, list[Tensor | None]]:
            assert all(parameter.grad is None for parameter in parameters)
            self.shapes.append(tuple(given.shape))
            loss = work(given)
            gradients = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None
            return loss, gradients

        return replay


def test_a_batch_of_another_shape_is_not_replayed() -> None:
    one, two, recorder, _ = copies(record := Replayed())
    batches = [torch.randn(size, 8) for size in (6, 6, 6, 6, 5, 6)]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert record.shapes == [(6, 8), (6, 8)]
    assert WARM == 3


def test_every_kind_of_batches_has_a_graph() -> None:
    """As many as there may be; others run as they are."""
    one, two, recorder, _ = copies(record := Replayed())
    sizes = [size for size in range(1, KINDS + 2) for _ in range(WARM + 1)]
    batches = [torch.randn(size, 8) for size in [*sizes, 1]]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert record.shapes == [*((size, 8) for size in range(1, KINDS + 1)), (1, 8)]


def test_batches_that_are_recorded() -> None:
    images, targets = torch.zeros(2, 3, 4, 4), torch.zeros(2)
    assert recordable(images)
    assert recordable(Batch(images, targets))
    assert not recordable([images])
    assert not recordable((images, {"boxes": targets}))


def test_a_graph_that_cannot_be_made() -> None:
    one, two, recorder, lines = copies(record := Replayed(ATTEMPTS))
    batches = [torch.randn(6, 8) for _ in range(WARM + ATTEMPTS + 3)]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert not record.shapes
    assert len(lines) == 1
    assert "no CUDA graph of an update (operation not permitted" in lines[0]


def test_a_graph_that_is_made_at_the_second_attempt() -> None:
    one, two, recorder, lines = copies(record := Replayed(1))
    batches = [torch.randn(6, 8) for _ in range(WARM + 3)]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert len(record.shapes) == 2
    assert not lines


def test_no_finalizer_runs_during_a_recording() -> None:
    ended: list[bool] = []

    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            ended.append(gc.isenabled())

    Cycle()
    with no_garbage_collection():
        assert ended == [True]
        Cycle()
        kept = [[] for _ in range(100_000)]  # more than a collection waits for
        assert len(ended) == 1
    assert gc.isenabled()
    assert len(kept) == 100_000


@pytest.mark.gpu
def test_same_bits_as_without() -> None:
    one, two, recorder, lines = copies(None, "cuda")
    batches = [torch.randn(6, 8, device="cuda") for _ in range(WARM + 6)]
    assert train(one, None, batches) == train(two, recorder, batches)
    assert len(recorder.replays) == 1
    assert not lines
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.gpu
def test_images_with_labels_and_batch_norm() -> None:
    """Labels of two kinds, and statistics that no pass but those of the training changes."""
    torch.manual_seed(0)
    models = [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Linear(128, 4)).to("cuda")
        for _ in range(2)
    ]
    models[1].load_state_dict(models[0].state_dict())
    recorder = Recorder([*models[1].parameters()], print, [*models[1].buffers()])
    labels = [torch.randint(4, (5,), device="cuda"), torch.rand(5, 4, device="cuda").softmax(1)]
    batches = [Batch(torch.randn(5, 3, 6, 6, device="cuda"), targets) for targets in labels for _ in range(WARM + 3)]
    for model, runs in ((models[0], None), (models[1], recorder)):
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)

        def work(batch: Batch) -> Tensor:
            loss = nn.functional.cross_entropy(model(batch.images), batch.targets)  # noqa: B023
            loss.backward()
            return loss.detach()

        for batch in batches:
            runs(work, batch) if runs else work(batch)
            optimizer.step()
            optimizer.zero_grad()
    assert len(recorder.replays) == 2
    for name, tensor in models[0].state_dict().items():
        assert torch.allclose(tensor, models[1].state_dict()[name], rtol=1e-5, atol=1e-6), name
