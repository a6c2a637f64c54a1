"""Newton convergence over images (SOFT's Fig. 5)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from sightline.analysis.charts import curves_figure
from sightline.analysis.newton import Newton, has_newton, measure_newton
from sightline.analysis.studies.study import Facts, Study, Subject, Tick, captured, no_tick, short
from sightline.util.errors import InputError


def require_newton(subjects: Sequence[Subject]) -> None:
    """Raise InputError if a model has no SOFT blocks, before any image is read."""
    for subject in subjects:
        if not has_newton(subject.model):
            raise InputError(f"{subject.title} has no SOFT blocks; choose --model soft_tiny, or --attention soft")


@dataclass(frozen=True)
class Layer:
    """One layer over all images: landmarks, errors after 0 to k steps, and condition numbers."""

    block: str
    landmarks: int
    mean: list[float]
    least: list[float]
    most: list[float]
    condition: dict[str, float]


def study_newton(subjects: Sequence[Subject], iterations: int = 20, tick: Tick = no_tick) -> Study:
    """||A A_k A - A|| / ||A|| against k: mean and range over images, by layer, and condition numbers."""
    results: list[Facts] = []
    curves, bands, rows = {}, {}, []
    steps = list(range(iterations + 1))
    for subject in subjects:
        images = [measure_newton(blocks, iterations) for blocks in captured(subject, tick)]
        layers = [_layer(items) for items in zip(*images, strict=True)]
        for layer in layers:
            label = f"{subject.title}, {short(layer.block)}" if len(subjects) > 1 else short(layer.block)
            curves[label] = (steps, _positive(layer.mean))
            bands[label] = (_positive(layer.least), _positive(layer.most))
            rows.append(_row(subject.title, layer, iterations))
        results.append({"title": subject.title, "layers": [asdict(layer) for layer in layers]})
    figure = curves_figure("Newton iteration of the inverse", "step k", "||A A_k A - A|| / ||A||", curves, bands)
    return Study(
        "newton", "Convergence of the Newton iteration (SOFT, Fig. 5)",
        {"iterations": iterations, "subjects": results}, {"newton": figure},
        ("model", "layer", "landmarks", "error at k = 0", f"at k = {iterations // 2}", f"at k = {iterations}",
         "worst image", "condition, median", "condition, most"), rows,
        ["A is the matrix that the layer inverts: SOFT adds 0.01 to its diagonal, SOFT++ does not. Mean over heads and "
         "images in float32, as the model runs it; the band is the range over images. Condition numbers are taken in "
         "float64, over images and heads."],
    )  # fmt: skip


def _layer(items: Sequence[Newton]) -> Layer:
    errors = torch.stack([item.errors.mean(0) for item in items])  # (images, k + 1)
    conditions = torch.cat([item.conditions for item in items])
    return Layer(
        items[0].block, items[0].landmarks, errors.mean(0).tolist(), errors.amin(0).tolist(), errors.amax(0).tolist(),
        {"median": float(conditions.median()), "least": float(conditions.min()), "most": float(conditions.max())},
    )  # fmt: skip


def _positive(values: Sequence[float]) -> list[float]:
    """Values that a logarithmic axis can show."""
    return [max(value, 1e-12) for value in values]


def _row(title: str, layer: Layer, iterations: int) -> list[str]:
    at, condition = layer.mean, layer.condition
    return [
        title, short(layer.block), str(layer.landmarks), f"{at[0]:.3g}", f"{at[iterations // 2]:.3g}",
        f"{at[-1]:.3g}", f"{layer.most[-1]:.3g}", f"{condition['median']:.3g}", f"{condition['most']:.3g}",
    ]  # fmt: skip
