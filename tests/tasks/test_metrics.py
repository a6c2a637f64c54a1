"""Metrics against definitions written out image by image."""

import math
import operator
from functools import reduce

import pytest
import torch
from torch import Tensor

from sightline.tasks.metrics import (
    BINS,
    MAX_CONFUSION,
    NO_LABEL,
    Statistics,
    calibration_error,
    precision,
    recall,
    scores,
    statistics,
)


def random_batch(images: int = 200, classes: int = 7) -> tuple[Tensor, Tensor]:
    labels = torch.randint(classes, (images,))
    logits = torch.randn(images, classes)
    logits[torch.arange(images), labels] += 1
    return logits, labels


def brute_top(logits: Tensor, labels: Tensor, k: int) -> float:
    hits = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda i: -row[i])
        hits += label in order[:k]
    return 100 * hits / len(labels)


def brute_ece(logits: Tensor, labels: Tensor) -> float:
    probabilities = logits.double().softmax(1)
    rows = list(zip(probabilities.tolist(), labels.tolist(), strict=True))
    error = 0.0
    for i in range(BINS):
        inside = [(max(p), p.index(max(p)) == label) for p, label in rows if i / BINS < max(p) <= (i + 1) / BINS]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(h for _, h in inside) / len(inside)
            error += len(inside) / len(rows) * abs(confidence - accuracy)
    return 100 * error


def test_scores_are_their_definitions() -> None:
    logits, labels = random_batch()
    found = scores(statistics(logits, labels))
    assert found["top1"] == pytest.approx(brute_top(logits, labels, 1))
    assert found["top5"] == pytest.approx(brute_top(logits, labels, 5))
    assert found["ece"] == pytest.approx(brute_ece(logits, labels), abs=1e-4)
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_per_class() -> None:
    logits, labels = random_batch()
    total, chosen = statistics(logits, labels), logits.argmax(1)
    for k in range(7):
        assert recall(total)[k] == pytest.approx(100 * float((chosen[labels == k] == k).double().mean()))
        assert precision(total)[k] == pytest.approx(100 * float((labels[chosen == k] == k).double().mean()))
    assert scores(total)["balanced"] == pytest.approx(float(recall(total).mean()))


def test_confusion_has_a_row_for_the_truth() -> None:
    logits = torch.tensor([[0.0, 9, 0], [0, 9, 0], [9, 0, 0], [0, 0, 9]])
    total = statistics(logits, torch.tensor([0, 0, 0, 2]))
    assert total.confusion.tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 1]]
    assert total.targets.tolist() == [3, 0, 1]


def test_batches_add_up_in_any_order() -> None:
    logits, labels = random_batch()
    whole = statistics(logits, labels)
    parts = [statistics(logits[i : i + 33], labels[i : i + 33]) for i in range(0, 200, 33)]
    for a, b in zip(reduce(operator.add, reversed(parts)).tensors(), whole.tensors(), strict=True):
        torch.testing.assert_close(a, b)


def test_images_without_label_do_not_count() -> None:
    logits, labels = random_batch()
    padded = torch.cat([labels, torch.full((50,), NO_LABEL)])
    more = torch.cat([logits, torch.randn(50, 7)])
    for a, b in zip(statistics(more, padded).tensors(), statistics(logits, labels).tensors(), strict=True):
        torch.testing.assert_close(a, b)


def test_sets_of_labels() -> None:
    logits = torch.tensor([[3.0, 2, 1], [3, 2, 1], [3, 2, 1]])
    sets = torch.tensor([[True, False, True], [False, True, False], [False, False, False]])
    total = statistics(logits, sets)
    assert int(total.images) == 2  # the third has no right answer
    assert scores(total)["top1"] == 50
    assert scores(total)["loss"] == pytest.approx(
        -math.log(logits[0].softmax(0)[[0, 2]].sum()) / 2 - math.log(logits[0].softmax(0)[1]) / 2
    )
    assert math.isnan(scores(total)["balanced"])
    assert total.confusion.numel() == 0


def test_sets_of_one_are_labels() -> None:
    logits, labels = random_batch()
    one, sets = statistics(logits, labels), statistics(logits, torch.nn.functional.one_hot(labels, 7).bool())
    for key in ("top1", "top5", "ece", "loss"):
        assert scores(sets)[key] == pytest.approx(scores(one)[key], rel=1e-6)


def test_non_finite_outputs_are_wrong_and_counted() -> None:
    logits = torch.tensor([[9.0, 0], [math.nan, 0], [math.inf, 0], [0, 9]])
    total = statistics(logits, torch.tensor([0, 0, 0, 1]))
    assert int(total.nonfinite) == 2
    assert scores(total)["top1"] == 50
    assert math.isfinite(scores(total)["loss"])
    assert total.confusion.sum() == 2


def test_confident_and_always_right_is_calibrated() -> None:
    logits = torch.eye(4) * 100
    assert calibration_error(statistics(logits, torch.arange(4))) == pytest.approx(0, abs=1e-5)
    assert calibration_error(statistics(logits, torch.arange(4).flip(0))) == pytest.approx(100)


def test_few_and_many_classes() -> None:
    assert scores(statistics(torch.randn(9, 2), torch.zeros(9, dtype=torch.long)))["top5"] == 100
    many = statistics(torch.randn(3, MAX_CONFUSION + 1), torch.tensor([0, 1, 2]))
    assert many.confusion.numel() == 0
    assert int(many.targets.sum()) == 3


def test_no_images() -> None:
    empty = statistics(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert all(math.isnan(value) for value in scores(empty).values())


def test_half_precision_and_map() -> None:
    logits, labels = random_batch()
    total = statistics(logits.bfloat16(), labels).map(Tensor.double)
    assert isinstance(total, Statistics)
    assert {tensor.dtype for tensor in total.tensors()} == {torch.float64}
    assert scores(total)["top1"] == pytest.approx(brute_top(logits.bfloat16(), labels, 1), abs=1.01)
