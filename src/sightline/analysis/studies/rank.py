"""Effective rank by layer."""

from collections.abc import Sequence

from sightline.analysis.charts import layer_figure
from sightline.analysis.rank import measure_rank
from sightline.analysis.studies.study import Facts, Study, Subject, Tick, captured, mean, no_tick, short


def study_rank(subjects: Sequence[Subject], limit: int = 1024, tick: Tick = no_tick) -> Study:
    """The effective rank of the attention of every layer, mean over heads and images."""
    results: list[Facts] = []
    lines, spread, bounds, rows = {}, {}, {}, []
    for subject in subjects:
        layers: list[Facts] = []
        means, least, most, bound = [], [], [], []
        for items in zip(*(measure_rank(blocks, limit) for blocks in captured(subject, tick)), strict=True):
            ranks = [mean(item.effective) for item in items]
            first = items[0]
            means.append(mean(ranks))
            least.append(min(ranks))
            most.append(max(ranks))
            bound.append(float(first.bound))
            layers.append({
                "block": first.block, "mechanism": first.mechanism, "rank": mean(ranks), "least": min(ranks),
                "most": max(ranks), "bound": first.bound, "tokens": first.tokens, "method": first.method,
                "heads": [mean(values) for values in zip(*(item.effective for item in items), strict=True)],
            })  # fmt: skip
            rows.append([subject.title, short(first.block), first.mechanism, f"{mean(ranks):.2f}",
                         str(first.bound), str(first.tokens), first.method])  # fmt: skip
        results.append({"title": subject.title, "layers": layers})
        lines[subject.title], spread[subject.title] = means, (least, most)
        bounds[f"bound, {subject.title}"] = bound
    figure = layer_figure("Effective rank of attention", "exp of the entropy of singular values", lines, bounds, spread)
    axis = figure.axes[0]
    axis.set_yscale("log")
    axis.autoscale(axis="y")
    return Study(
        "rank", "Effective rank of attention", {"limit": limit, "subjects": results}, {"rank": figure},
        ("model", "layer", "mechanism", "effective rank", "at most", "tokens", "from"), rows,
        ["The exponential of the entropy of the singular values: r equal ones give r. From the thin factors of "
         "the mechanism, without an N x N matrix; from stacked rows if it has none, at most "
         f"{limit} per window: sampled rows have at most the rank of the whole."],
    )  # fmt: skip
