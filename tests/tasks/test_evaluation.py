"""Evaluation over batches: the same as over all images at once, and the model is left as it was."""

from typing import Any

import pytest
import torch
from torch import nn

from sightline.tasks.base import Scores
from sightline.tasks.classification.evaluate import LabelSetScorer
from sightline.tasks.evaluation import LabelScorer
from sightline.tasks.metrics import NO_LABEL, scores, statistics

CPU = torch.device("cpu")


def evaluate(model: nn.Module, loader: list[tuple], **options: Any) -> Scores:
    return LabelScorer("abcd", CPU).evaluate(model, loader, **options)


def make(images: int = 50, size: int = 8) -> tuple[nn.Module, torch.Tensor, torch.Tensor, list[tuple]]:
    model = nn.Sequential(nn.Linear(size, 4), nn.Dropout(0.5))
    data, labels = torch.randn(images, size), torch.randint(4, (images,))
    return model, data, labels, list(zip(data.split(7), labels.split(7), strict=True))


def test_batches_are_the_whole() -> None:
    model, data, labels, loader = make()
    model.train()
    seen: list[int] = []
    result = evaluate(model, loader, on_batch=seen.append)
    assert sum(seen) == result.images == 50
    assert model.training  # and yet no dropout:
    assert result.values == pytest.approx(scores(statistics(model.eval()(data), labels)))
    assert dict(result) == result.values


def test_padding_counts_no_image_twice() -> None:
    model, data, _, loader = make()
    loader.append((data[:3], torch.full((3,), NO_LABEL)))
    assert evaluate(model, loader).images == 50


def test_several_sets_of_labels_in_one_pass() -> None:
    model, data, labels, _ = make()
    sets = torch.zeros(50, 4, dtype=torch.bool)
    sets[torch.arange(50), labels] = True
    sets[10] = False
    places = torch.arange(50)
    loader = list(zip(data.split(7), places.split(7), strict=True))
    found = LabelSetScorer("abcd", CPU, {"labels": labels, "real": sets}).evaluate(model, loader)
    direct = evaluate(model, list(zip(data.split(7), labels.split(7), strict=True)))
    assert found["labels"].values == pytest.approx(direct.values)
    assert found["real"].images == 49


def test_processes_add_up() -> None:
    model, _, _, loader = make()
    whole = evaluate(model, loader)
    other = LabelScorer("abcd", CPU)
    other.evaluate(model, loader[3:])
    others = iter(other.total.tensors())
    joined = evaluate(model, loader[:3], reduce=lambda tensor: tensor + next(others))
    assert joined.values == pytest.approx(whole.values)


def test_a_process_without_images() -> None:
    model, _, _, loader = make()
    scorer = LabelScorer("abcd", CPU)
    assert scorer.evaluate(model, []).images == 0
    assert scorer.evaluate(model, loader).images == 50


def test_autocast_is_used() -> None:
    seen = []

    class Spy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            seen.append(out.dtype)
            return out

    evaluate(Spy(8, 4), [(torch.randn(3, 8), torch.zeros(3, dtype=torch.long))], precision="bf16")
    assert seen == [torch.bfloat16]


def test_the_mode_comes_back_after_an_error() -> None:
    model = nn.Linear(8, 4).train()
    with pytest.raises(RuntimeError):
        evaluate(model, [(torch.randn(3, 5), torch.zeros(3, dtype=torch.long))])
    assert model.training


def test_rows_of_classes() -> None:
    model, _, labels, loader = make()
    rows = evaluate(model, loader).per_class
    assert [row["class"] for row in rows] == list("abcd")
    assert [row["images"] for row in rows] == torch.bincount(labels, minlength=4).tolist()
