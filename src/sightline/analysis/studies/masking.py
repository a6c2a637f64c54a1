"""Accuracy with local or random keys masked (the InLine paper's table)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.analysis.charts import bars_figure
from sightline.analysis.masking import Mask, masked
from sightline.analysis.studies.study import Study, Tick, no_tick

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]  # (images, labels), from the start at every call


@dataclass(frozen=True)
class Labelled:
    """A classifier and labeled batches, on its device."""

    title: str
    model: nn.Module
    batches: Batches


def study_masking(subjects: Sequence[Labelled], sizes: Sequence[int], seed: int = 0, tick: Tick = no_tick) -> Study:
    """Top-1 with nothing masked, with the local size x size keys masked, and with as many random ones."""
    rows, series, results = [], {}, []
    for subject in subjects:
        whole, images = accuracy(subject, None, tick)
        local = [accuracy(subject, Mask(size, seed=seed), tick)[0] for size in sizes]
        random = [accuracy(subject, Mask(size, True, seed), tick)[0] for size in sizes]
        results.append({"title": subject.title, "images": images, "top1": whole, "local": local, "random": random})
        rows.append([subject.title, f"{images:,}", *(f"{value:.2f}" for value in (whole, *local, *random))])
        series[f"{subject.title}, local"] = [whole, *local]
        series[f"{subject.title}, random"] = [whole, *random]
    groups = ["nothing", *(f"{size}x{size} or {size * size}" for size in sizes)]
    columns = ("model", "images", "top-1 %", *(f"local {s}x{s}" for s in sizes), *(f"random {s * s}" for s in sizes))
    return Study(
        "masking", "Accuracy with local or random keys masked (InLine paper, table)",
        {"sizes": list(sizes), "seed": seed, "subjects": results},
        {"masking": bars_figure("Top-1 with keys masked for every query", "top-1, %", groups, series)}, columns, rows,
        ["Every query of every layer attends to the keys that are left, as if the others were not there; local terms "
         "and the class token stay. Random keys are drawn for each query, as many as its neighborhood has inside the "
         "map."],
    )  # fmt: skip


@torch.no_grad()
def accuracy(subject: Labelled, mask: Mask | None, tick: Tick = no_tick) -> tuple[float, int]:
    """Top-1 in percent under a mask, and the number of images."""
    right = total = 0
    for images, labels in subject.batches():
        with nullcontext() if mask is None else masked(subject.model, mask):
            right += int((subject.model(images).argmax(-1) == labels).sum())
        total += len(labels)
        tick()
    return 100 * right / max(total, 1), total
