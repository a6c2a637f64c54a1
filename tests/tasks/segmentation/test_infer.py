"""Windows, scales and mirror images, on models whose answers are known."""

import pytest
import torch
from torch import Tensor, nn

from sightline.tasks.segmentation.config import Inference, Model
from sightline.tasks.segmentation.infer import likeliest, probabilities, slide, windows
from sightline.tasks.segmentation.model import Segmenter
from tests.tasks.segmentation.tiny import BACKBONE


class Pointwise(nn.Module):
    """Logits that depend on their pixel only; notes the sizes it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(tuple(x.shape[-2:]))
        return torch.cat([x, 2 * x], 1)


@pytest.mark.parametrize(("size", "window", "stride"), [(10, 4, 3), (10, 4, 4), (4, 4, 2), (3, 8, 5), (101, 32, 21)])
def test_windows_cover_everything(size: int, window: int, stride: int) -> None:
    starts = list(windows(size, window, stride))
    covered = {place for start in starts for place in range(start, start + window) if place < size}
    assert covered == set(range(size))
    assert max(starts) == max(size - window, 0)
    assert len(set(starts)) == len(starts)


def test_windows_of_a_pointwise_model_give_the_whole() -> None:
    model, images = Pointwise(), torch.randn(2, 3, 37, 53)
    assert torch.allclose(slide(model, images, (16, 20), (11, 13)), model(images), atol=1e-6)
    assert set(model.sizes[:-1]) == {(16, 20)}


def test_scales_and_mirrors_are_averaged() -> None:
    model, images = Pointwise(), torch.randn(1, 3, 32, 32)
    plain = probabilities(model, images, Inference(), 16)
    mirrored = probabilities(model, images, Inference(flip=True), 16)
    assert torch.allclose(plain, mirrored, atol=1e-6)  # nothing of this model depends on the place
    model.sizes.clear()
    many = probabilities(model, images, Inference(scales=(0.5, 1.0, 1.5), flip=True), 16)
    assert model.sizes == [(16, 16)] * 2 + [(32, 32)] * 2 + [(48, 48)] * 2
    assert torch.allclose(many.sum(1), torch.ones(1, 32, 32), atol=1e-5)


def test_a_mirrored_answer_is_turned_back() -> None:
    class Left(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            ramp = torch.linspace(-1, 1, x.shape[-1]).expand(len(x), 1, *x.shape[-2:])
            return torch.cat([ramp, -ramp], 1)

    found = probabilities(Left(), torch.zeros(1, 3, 8, 8), Inference(flip=True), 8)
    assert torch.allclose(found, torch.full_like(found, 0.5), atol=1e-6)


@pytest.mark.parametrize("out", [(50, 70), (7, 9), (1, 5)])
def test_classes_of_a_large_image_are_found_in_bands(out: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    given = (Pointwise(), torch.randn(2, 3, 20, 30), Inference(scales=(0.5, 1.0), flip=True), 16, out)
    expected = probabilities(*given).argmax(1)
    assert likeliest(*given).equal(expected)
    monkeypatch.setattr("sightline.tasks.segmentation.infer.MAX_VALUES", 2 * 6 * 3 * out[1])
    assert (likeliest(*given) == expected).float().mean() > 0.99  # but for ties


def test_answers_at_the_size_of_the_mask() -> None:
    assert probabilities(Pointwise(), torch.randn(1, 3, 20, 30), Inference(), 16, (50, 70)).shape == (1, 6, 50, 70)


@pytest.mark.parametrize("head", ["upernet", "semantic_fpn"])
def test_any_size_goes_in_and_comes_out(head: str) -> None:
    torch.manual_seed(0)
    model = Segmenter(Model(name="inline_pvt_tiny", args=BACKBONE, head=head, channels=64), 4, auxiliary=True)  # type: ignore[arg-type]
    logits, auxiliary = model(torch.randn(2, 3, 50, 70))
    assert logits.shape == auxiliary.shape == (2, 4, 50, 70)
    (logits.square().mean() + auxiliary.square().mean()).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == []
    assert model.eval()(torch.randn(1, 3, 33, 31)).shape == (1, 4, 33, 31)
