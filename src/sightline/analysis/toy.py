"""The toy of the InLine paper's Fig. 1: four keys, four collinear queries, and their scores with three mechanisms.

Linear attention gives all four queries the same scores: it cannot tell a long query from a short one. Softmax and
InLine can. Every printed score is reproduced to 0.01 by scales between 0.670 and 0.692; with d ** -0.5 = 0.707
those of the fourth query are off by up to 0.015, so the figure was made with another scale, or another fourth query.
"""

import torch
from torch import Tensor

from sightline.analysis.figures import bars_figure
from sightline.analysis.study import Study
from sightline.ops import inline_attention, linear_attention, softmax_attention

KEYS = ((0.62, 1.85), (1.02, 1.02), (1.95, 0.65), (1.83, 0.30))
QUERIES = ((0.40, 0.72), (0.70, 1.25), (0.95, 1.67), (1.13, 2.05))
SCALE = 0.68
PUBLISHED: dict[str, tuple[tuple[float, ...], ...]] = {
    "softmax": ((0.31, 0.23, 0.25, 0.20), (0.36, 0.22, 0.25, 0.17), (0.41, 0.20, 0.24, 0.15), (0.44, 0.19, 0.23, 0.13)),
    "linear": ((0.32, 0.23, 0.25, 0.19),) * 4,
    "inline": ((0.31, 0.23, 0.25, 0.20), (0.35, 0.22, 0.26, 0.17), (0.39, 0.21, 0.26, 0.14), (0.42, 0.21, 0.26, 0.12)),
}


def toy_scores(scale: float = SCALE) -> dict[str, Tensor]:
    """The scores (queries, keys) of softmax, linear attention with relu, and InLine without a feature map."""
    q, k = (torch.tensor(rows, dtype=torch.float64)[None, :, None] for rows in (QUERIES, KEYS))
    eye = torch.eye(len(KEYS), dtype=torch.float64)[None, :, None]  # as values, it makes the output the scores
    return {
        "softmax": softmax_attention(q, k, eye, scale=scale)[0, :, 0],
        "linear": linear_attention(q, k, eye, phi="relu")[0, :, 0],
        "inline": inline_attention(q, k, eye, scale=scale)[0, :, 0],
    }


def study_toy(scale: float = SCALE) -> Study:
    """The scores of four collinear queries by three mechanisms, next to the printed ones."""
    scores = {name: values.tolist() for name, values in toy_scores(scale).items()}
    rows = []
    for name, matrix in scores.items():
        for number, (row, printed) in enumerate(zip(matrix, PUBLISHED[name], strict=True), 1):
            far = max(abs(a - b) for a, b in zip(row, printed, strict=True))
            rows.append([name, str(number), *(f"{value:.2f}" for value in row), f"{far:.3f}"])
    keys = [f"key {i}" for i, _ in enumerate(KEYS, 1)]
    panels = [{f"query {i}": row for i, row in enumerate(matrix, 1)} for matrix in scores.values()]
    return Study(
        "toy", "Scores of four collinear queries (InLine paper, Fig. 1)",
        {"keys": KEYS, "queries": QUERIES, "scale": scale, "scores": scores, "published": PUBLISHED},
        {"toy": bars_figure(list(scores), "score", keys, panels, width=9.3)},
        ("mechanism", "query", *keys, "off the printed by"), rows,
        [f"Scale {scale:g}. The printed scores are met to 0.01 by scales from 0.670 to 0.692; d ** -0.5 = 0.707 is off "
         "by up to 0.015 at the fourth query. Linear attention has no scale."],
    )  # fmt: skip
