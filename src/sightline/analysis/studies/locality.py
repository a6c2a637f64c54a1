"""Locality by layer (the InLine paper's Fig. 3)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sightline.analysis.charts import layer_figure
from sightline.analysis.locality import Locality, measure_locality
from sightline.analysis.studies.study import Facts, Study, Subject, Tick, captured, mean, no_tick, short


@dataclass(frozen=True)
class Layer:
    """One layer over all images: mean, least and most mass in the neighborhood, and the mass of uniform attention."""

    block: str
    mechanism: str
    mass: float
    least: float
    most: float
    heads: list[float]
    even: float
    residual: float | None


def study_locality(subjects: Sequence[Subject], size: int = 3, queries: int = 256, tick: Tick = no_tick) -> Study:
    """The mass in the neighborhood of a query, mean over queries, heads and images, in every layer."""
    results: list[Facts] = []
    lines: dict[str, list[float]] = {}
    levels: dict[str, list[float]] = {}
    spread, rows = {}, []
    for subject in subjects:
        layers = [
            _layer(items)
            for items in zip(*(measure_locality(b, size, queries) for b in captured(subject, tick)), strict=True)
        ]
        results.append({"title": subject.title, "layers": [asdict(layer) for layer in layers]})
        lines[subject.title] = [layer.mass for layer in layers]
        spread[subject.title] = ([layer.least for layer in layers], [layer.most for layer in layers])
        even = [layer.even for layer in layers]
        if even not in levels.values():
            levels[f"uniform, {subject.title}"] = even
        if any(layer.residual is not None for layer in layers):
            lines[f"{subject.title} with its residual"] = [layer.mass + (layer.residual or 0.0) for layer in layers]
        rows += [_row(subject.title, layer) for layer in layers]
    if len(levels) == 1:
        levels = {"uniform": next(iter(levels.values()))}
    title = f"Attention inside the {size}x{size} neighborhood of the query"
    return Study(
        "locality", f"{title} (InLine paper, Fig. 3)", {"size": size, "queries": queries, "subjects": results},
        {"locality": layer_figure(title, "sum of the weights", lines, levels, spread)},
        ("model", "layer", "mechanism", "mass", "uniform", "times uniform", "residual adds"), rows,
        ["Mean over queries that have their whole neighborhood inside the map, over heads and images; the band is the "
         "range over images. Uniform attention over N keys has 9 / N of its mass there. The residual of InLine adds "
         "the sum of its 3x3 weights, mean over channels, to the neighborhood."],
    )  # fmt: skip


def _layer(items: Sequence[Locality]) -> Layer:
    masses = [mean(item.mass) for item in items]
    residuals = [item.residual for item in items if item.residual is not None]
    heads = [mean(values) for values in zip(*(item.mass for item in items), strict=True)]
    first = items[0]
    return Layer(
        first.block, first.mechanism, mean(masses), min(masses), max(masses), heads, first.even,
        mean(residuals) if residuals else None,
    )  # fmt: skip


def _row(title: str, layer: Layer) -> list[str]:
    residual = "-" if layer.residual is None else f"{layer.residual:+.4f}"
    return [
        title, short(layer.block), layer.mechanism, f"{layer.mass:.4f}", f"{layer.even:.4f}",
        f"{layer.mass / layer.even:.2f}", residual,
    ]  # fmt: skip
