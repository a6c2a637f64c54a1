"""Which forward passes are captured, and that a replayed model gives what the model gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sightline.models.factory import create_model
from sightline.tasks.replay import EAGER, SHAPES, Replayed, replayed

CPU = torch.device("cpu")


class Doubling(nn.Module):
    """Twice its input, or every one of a list."""

    num_classes = 7

    def forward(self, x: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
        return 2 * x if isinstance(x, Tensor) else [2 * each for each in x]


class Captures:
    """Notes what is captured."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.replays = 0

    def __call__(self, model: Callable[[Tensor], Any], x: Tensor) -> Callable[[Tensor], Any]:
        self.shapes.append(tuple(x.shape))

        def replay(given: Tensor) -> Any:
            self.replays += 1
            return model(given)

        return replay


@torch.no_grad()
def test_a_shape_that_comes_often_is_captured_once() -> None:
    captures = Captures()
    model = Replayed(Doubling().eval(), captures)
    for number in range(EAGER + 3):
        assert captures.replays == max(0, number - EAGER)
        assert model(torch.full((2, 3), float(number))).tolist() == [[2.0 * number] * 3] * 2
    assert captures.shapes == [(2, 3)]
    for size in range(5, 10):
        for _ in range(EAGER + 1):
            model(torch.zeros(size))
    assert len(captures.shapes) == SHAPES  # others stay eager


def test_gradients_lists_and_training_are_eager() -> None:
    captures = Captures()
    model = Replayed(Doubling().eval(), captures)
    for _ in range(EAGER + 2):
        model(torch.zeros(2))
        with torch.no_grad():
            model([torch.zeros(2)])
            model.train()(torch.zeros(2))
        model.eval()
    assert not captures.shapes


@torch.no_grad()
def test_a_failed_capture_is_eager_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    tried = []

    def failing(model: object, x: Tensor) -> Any:
        tried.append(x.shape)
        raise RuntimeError("operation not permitted when stream is capturing")

    model = Replayed(Doubling().eval(), failing)
    for _ in range(EAGER + 3):
        assert model(torch.ones(2)).tolist() == [2, 2]
    assert len(tried) == 1
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert "not permitted" in err


@torch.no_grad()
def test_a_mistake_is_no_failed_capture() -> None:
    def mistaken(model: object, x: Tensor) -> Any:
        raise AttributeError("no such thing")

    model = Replayed(Doubling().eval(), mistaken)
    for _ in range(EAGER):
        model(torch.ones(2))
    with pytest.raises(AttributeError, match="no such thing"):
        model(torch.ones(2))


def test_everything_else_is_that_of_the_model() -> None:
    model = Doubling().eval()
    made = Replayed(model, Captures())
    assert made.num_classes == 7
    assert not made.training
    assert made.train().model.training
    with pytest.raises(AttributeError, match="nothing"):
        _ = made.nothing
    assert replayed(model, CPU) is model


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["inline_deit_tiny", "inline_swin_tiny", "soft_tiny", "deit_tiny_patch16_224"])
@pytest.mark.parametrize("half", [False, True])
def test_replays_on_a_gpu(name: str, half: bool) -> None:
    device = torch.device("cuda")
    model = create_model(name, num_classes=10).eval()
    made = replayed(model, device)
    assert isinstance(made, Replayed)
    with torch.no_grad():
        for _ in range(EAGER + 4):
            x = torch.randn(4, 3, 224, 224, device=device)
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                want, got = model(x), made(x)
            torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2 if half else 1e-4)
    assert len(made.graphs) == 1
