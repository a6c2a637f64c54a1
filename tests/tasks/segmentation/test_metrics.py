"""Counts and scores against their definitions."""

import torch

from sightline.tasks.segmentation.data import IGNORE
from sightline.tasks.segmentation.metrics import confusion, score


def by_hand(found: torch.Tensor, masks: torch.Tensor, classes: int) -> dict[str, float]:
    """The definitions, a class after another."""
    counted = masks != IGNORE
    ious, accuracies = [], []
    for c in range(classes):
        a, b = (found == c) & counted, masks == c
        if (a | b).any():
            ious.append(float((a & b).sum() / (a | b).sum()))
        if b.any():
            accuracies.append(float((a & b).sum() / b.sum()))
    right = float(((found == masks) & counted).sum() / counted.sum())
    return {"miou": 100 * sum(ious) / len(ious), "macc": 100 * sum(accuracies) / len(accuracies), "aacc": 100 * right}


def test_scores_are_their_definitions() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = torch.randint(IGNORE, 5, (3, 20, 30), generator=generator)
    found = torch.randint(0, 6, (3, 20, 30), generator=generator)
    counts = confusion(found, masks, 7)
    assert counts.sum() == (masks != IGNORE).sum()
    for name, value in by_hand(found, masks, 7).items():
        assert abs(score(counts, "abcdefg", 3).values[name] - value) < 1e-4, name


def test_counts_add_up() -> None:
    generator = torch.Generator().manual_seed(1)
    masks, found = (torch.randint(0, 4, (6, 9, 9), generator=generator) for _ in range(2))
    parts = sum(confusion(f, m, 4) for f, m in zip(found, masks, strict=True))
    assert torch.equal(parts, confusion(found, masks, 4))


def test_rows_by_class() -> None:
    result = score(torch.tensor([[6, 2, 0], [0, 8, 0], [0, 0, 0]]), "abc", 1)
    rows = result.per_class
    assert rows[0] == {"class": "a", "pixels": 8, "iou": 75.0, "accuracy": 75.0}
    assert rows[1] == {"class": "b", "pixels": 8, "iou": 80.0, "accuracy": 100.0}
    assert rows[2] == {"class": "c", "pixels": 0, "iou": None, "accuracy": None}
    assert dict(result)["miou"] == 77.5
