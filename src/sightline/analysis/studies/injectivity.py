"""Injectivity: the toy of the InLine paper's Fig. 1, confusions over images (Fig. 2), and certificates by layer."""

from collections.abc import Sequence

from sightline.analysis.certificate import Certificate, certify
from sightline.analysis.charts import histogram_figure, toy_figure
from sightline.analysis.confusions import USUAL, Thresholds, count_confusions
from sightline.analysis.studies.study import Facts, Study, Subject, Tick, captured, mean, no_tick, short
from sightline.analysis.toy import KEYS, PUBLISHED, QUERIES, SCALE, toy_scores

KINDS = ("confused", "centred", "different")
HISTOGRAM = "Confusions per image, all layers and heads"


def study_toy(scale: float = SCALE) -> Study:
    """The scores of four collinear queries by three mechanisms, next to the printed ones."""
    scores = {name: values.tolist() for name, values in toy_scores(scale).items()}
    rows = [
        [name, str(i + 1), *(f"{value:.2f}" for value in row), f"{_far(row, PUBLISHED[name][i]):.3f}"]
        for name, matrix in scores.items()
        for i, row in enumerate(matrix)
    ]
    facts: Facts = {"keys": KEYS, "queries": QUERIES, "scale": scale, "scores": scores, "published": PUBLISHED}
    return Study(
        "toy", "Scores of four collinear queries (InLine paper, Fig. 1)", facts, {"toy": toy_figure(scores)},
        ("mechanism", "query", "key 1", "key 2", "key 3", "key 4", "off the printed by"), rows,
        [f"Scale {scale:g}. The printed scores are met to 0.01 by scales from 0.670 to 0.692; d ** -0.5 = 0.707 is off "
         "by up to 0.015 at the fourth query. Linear attention has no scale."],
    )  # fmt: skip


def _far(row: Sequence[float], printed: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(row, printed, strict=True))


def study_confusions(
    subjects: Sequence[Subject], thresholds: Thresholds = USUAL, queries: int = 128, tick: Tick = no_tick
) -> Study:
    """Confusions of every image, over all blocks and heads."""
    results: list[Facts] = []
    rows: list[list[str]] = []
    counts: dict[str, dict[str, list[int]]] = {"confused": {}, "centred": {}}
    for subject in subjects:
        found = [count_confusions(blocks, thresholds, queries) for blocks in captured(subject, tick)]
        blocks = [
            {"block": items[0].block, **{key: [getattr(item, key) for item in items] for key in KINDS}}
            for items in zip(*found, strict=True)
        ]
        totals = {key: [sum(getattr(block, key) for block in image) for image in found] for key in KINDS}
        pairs = max(sum(totals["different"]), 1)
        shares = {f"{key}_share": sum(totals[key]) / pairs for key in counts}
        results.append({"title": subject.title, **totals, **shares, "blocks": blocks})
        for key, series in counts.items():
            series[subject.title] = totals[key]
        numbers = [(totals[key], shares[f"{key}_share"]) for key in counts]
        rows.append([subject.title, *(cell for each in numbers for cell in _cells(*each))])
    figures = {
        "confusions": histogram_figure(HISTOGRAM, "confused pairs of queries", counts["confused"]),
        "confusions-centred": histogram_figure(
            f"{HISTOGRAM}, uniform attention subtracted", "confused pairs of queries", counts["centred"]
        ),
    }
    facts: Facts = {
        "query_distance": thresholds.query, "score_distance": thresholds.score, "queries": queries,
        "subjects": results,
    }  # fmt: skip
    return Study(
        "confusions", "Pairs of different queries with the same scores (InLine paper, Fig. 2)", facts, figures,
        ("model", "mean", "least", "most", "% of pairs", "centered, mean", "least", "most", "% of pairs"), rows,
        [f"A confusion is a pair of queries further apart than {thresholds.query:g} of the longer one's length whose "
         f"scores differ by at most {thresholds.score:g} of the longer row's length, in one head of one layer, among "
         f"at most {queries} evenly spread queries per image; centered: with uniform attention subtracted from the "
         "scores, so that attention which is nearly uniform does not count as confusion. The paper publishes no "
         "thresholds."],
    )  # fmt: skip


def _cells(totals: Sequence[int], share: float) -> list[str]:
    return [f"{mean(totals):,.1f}", f"{min(totals):,}", f"{max(totals):,}", f"{100 * share:.3f}"]


def study_certificates(subjects: Sequence[Subject]) -> Study:
    """Rank and smallest singular value of [phi(K), 1] in every layer, on the first image."""
    results: list[Facts] = []
    rows = []
    for subject in subjects:
        first = Subject(subject.title, subject.model, subject.images[:1])
        layers = []
        for block in next(captured(first, no_tick)):
            heads = certify(block)
            layers.append({"block": block.name, "mechanism": block.mechanism, "heads": [h.facts() for h in heads]})
            rows.append([subject.title, short(block.name), block.mechanism, *_summary(heads)])
        results.append({"title": subject.title, "layers": layers})
    return Study(
        "certificates", "Whether each layer separates queries", {"subjects": results}, {},
        ("model", "layer", "mechanism", "rank", "of", "smallest singular value", "verdict", "pair differs by"),
        rows,
        ["Of the head that is nearest to confusion, on the first image. Softmax and InLine are injective where "
         "[phi(K), 1] has full column rank (and phi is injective); linear attention never is: the pair is two "
         "different queries whose scores were both computed, and the last column is their largest difference over the "
         "largest score."],
    )  # fmt: skip


def _summary(heads: Sequence[Certificate]) -> list[str]:
    worst = min(heads, key=lambda head: (head.rank, head.smallest))
    differences = [head.difference for head in heads if head.difference is not None]
    shown = f"{max(differences):.1e}" if differences else "-"
    return [str(worst.rank), str(worst.columns), f"{worst.smallest:.3g}", worst.verdict, shown]
