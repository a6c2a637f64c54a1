"""Locality: how much of a query's attention lies in its neighborhood (the InLine paper's Fig. 3).

The mean is taken over queries whose whole neighborhood lies inside the map, so that even attention over N keys gives
exactly 9 / N; if a map has no such position, over all of its positions, and the even level counts the neighbors that
there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, spread
from sightline.analysis.figures import layer_figure
from sightline.analysis.study import Facts, Study, Subject, by_layer, mean, over_heads, short, titled


@dataclass(frozen=True)
class Locality:
    """One block on one image.

    Args:
        mass: the sum of the weights in the neighborhood per head, mean over queries; signed weights count as such.
        even: the same of even attention over the keys that a query may attend to.
        residual: what the local residual of InLine adds: the sum of its 3x3 weights, mean over channels.
    """

    block: str
    mechanism: str
    mass: list[float]
    even: float
    residual: float | None = None


def measure_locality(blocks: Sequence[BlockCall], size: int = 3, limit: int = 256) -> list[Locality]:
    """The mass in the size x size neighborhood of at most `limit` queries of every block; O(limit N)."""
    return [_measure(block, size, limit) for block in blocks]


def _measure(block: BlockCall, size: int, limit: int) -> Locality:
    tokens = inner_tokens(block, size, limit)
    near = near_keys(tokens - block.prefix, block.grid, block.key_grid, block.prefix, size)  # Q keys
    visible = block.visible(tokens).cpu()  # parts Q keys
    even = float(((near & visible).sum(-1) / visible.sum(-1)).mean())
    mass = (block.rows(tokens).cpu() * near).sum(-1).mean(-1)  # heads
    return Locality(block.name, block.mechanism, mass.tolist(), even, _residual(block))


def inner_tokens(block: BlockCall, size: int, limit: int) -> Tensor:
    """At most `limit` tokens whose neighborhood lies inside the map, evenly spread; any if there are none."""
    (height, width), edge = block.grid, size // 2
    if min(height, width) < size:
        edge = 0
    down, across = torch.arange(edge, height - edge), torch.arange(edge, width - edge)
    inner = (down[:, None] * width + across).flatten()
    return block.prefix + inner[spread(range(len(inner)), limit)]


def near_keys(positions: Tensor, grid: tuple[int, int], key_grid: tuple[int, int], prefix: int, size: int) -> Tensor:
    """(Q, prefix + keys) for positions of `grid`, below 0 for none; around the key that covers each."""
    down = positions.div(grid[1], rounding_mode="floor") * key_grid[0] // grid[0]
    across = positions.remainder(grid[1]) * key_grid[1] // grid[1]
    numbers = torch.arange(key_grid[0] * key_grid[1], device=positions.device)
    far_down = (numbers // key_grid[1] - down[:, None]).abs()
    far_across = (numbers % key_grid[1] - across[:, None]).abs()
    near = (far_down <= size // 2) & (far_across <= size // 2) & (positions >= 0)[:, None]
    return torch.nn.functional.pad(near, (prefix, 0))


def _residual(block: BlockCall) -> float | None:
    with torch.no_grad():
        weights = [part.core.local_weights(part.place) for part in block.parts]
    sums = [each.sum((2, 3)).mean() for each in weights if each is not None]
    return float(torch.stack(sums).mean()) if sums else None


def study_locality(subjects: Sequence[Subject], size: int = 3, queries: int = 256) -> Study:
    """The mass in the neighborhood of a query, mean over queries, heads and images, in every layer."""
    layers = by_layer(subjects, lambda blocks: measure_locality(blocks, size, queries), _summarize)
    rows = [
        [title, short(at["block"]), at["mechanism"], f"{at['mass']:.4f}", f"{at['even']:.4f}",
         f"{at['mass'] / at['even']:.2f}", "-" if at["residual"] is None else f"{at['residual']:+.4f}"]
        for title, each in layers.items() for at in each
    ]  # fmt: skip
    with_residual = {
        f"{title} with its residual": [at["mass"] + (at["residual"] or 0.0) for at in each]
        for title, each in layers.items()
        if any(at["residual"] is not None for at in each)
    }
    levels: dict[str, list[float]] = {}
    for title, each in layers.items():
        if (even := [at["even"] for at in each]) not in levels.values():
            levels[f"uniform, {title}"] = even
    if len(levels) == 1:
        levels = {"uniform": next(iter(levels.values()))}
    title = f"Attention inside the {size}x{size} neighborhood of the query"
    return Study(
        "locality", f"{title} (InLine paper, Fig. 3)", {"size": size, "queries": queries, "subjects": titled(layers)},
        {"locality": layer_figure(title, "sum of the weights", layers, "mass", levels, with_residual)},
        ("model", "layer", "mechanism", "mass", "uniform", "times uniform", "residual adds"), rows,
        ["Mean over the queries whose whole neighborhood lies inside the map, or over all if there are none, over "
         "heads and over images; the band is the range over images. Uniform attention over N keys has at most "
         f"{size * size} / N of its mass there. The residual of InLine adds the sum of its 3x3 weights, mean over "
         "channels, to the neighborhood."],
    )  # fmt: skip


def _summarize(items: Sequence[Locality]) -> Facts:
    """The facts of a layer from its locality in all images."""
    residuals = [item.residual for item in items if item.residual is not None]
    return {
        "block": items[0].block, "mechanism": items[0].mechanism, **over_heads("mass", [item.mass for item in items]),
        "even": items[0].even, "residual": mean(residuals) if residuals else None,
    }  # fmt: skip
