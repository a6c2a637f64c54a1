"""`sightline analyze injectivity`: whether attention tells queries apart."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.cli.analyze_options import Pictures
from sightline.cli.options import Command, UsageError, option

if TYPE_CHECKING:
    from sightline.analysis.confusions import Thresholds

TOY_SCALE = 0.68


@dataclass(frozen=True, kw_only=True)
class Options(Pictures):
    """Measure whether attention tells queries apart: the InLine paper's toy, confusions, and a certificate by layer.

    A confusion is a pair of clearly different queries with nearly the same scores; the thresholds are options and are
    printed. The certificate of a layer is the rank and smallest singular value of [phi(K), 1], and for linear attention
    two different queries with equal scores. Without images only the toy is made.
    """

    query_distance: float = option(
        "queries are different beyond this share of the longer one's length; by default 0.5", default=0.5,
        metavar="X",
    )  # fmt: skip
    score_distance: float = option(
        "scores are the same up to this share of the longer row's length; by default 0.01", default=0.01, metavar="X"
    )
    queries: int = option("places of an image that are paired; by default 128", default=128, metavar="N")
    scale: float = option(f"of the toy's scores; by default {TOY_SCALE}", default=TOY_SCALE, metavar="X")


def run(options: Options) -> None:
    """The toy always; the rest where there are images."""
    from sightline.analysis.studies import injectivity as studies
    from sightline.cli.analyze_output import about, finish
    from sightline.cli.analyze_run import begin, look

    limits = thresholds(options.query_distance, options.score_distance)
    toy = studies.study_toy(options.scale)
    if options.data is None and not options.checkpoint:
        device = begin(options)
        toy.notes.append("Give --data, or --checkpoint with a run folder, for confusions and certificates.")
        finish(options.out, about("injectivity", device, (), None), [toy], (), options.json)
        return
    look(
        "injectivity",
        options,
        lambda subjects, tick: [
            toy,
            studies.study_confusions(subjects, limits, options.queries, tick),
            studies.study_certificates(subjects),
        ],
    )


def thresholds(query: float, score: float) -> "Thresholds":
    from sightline.analysis.confusions import Thresholds

    for name, value in (("query-distance", query), ("score-distance", score)):
        if not 0 <= value < 2:
            raise UsageError(f"--{name}: {value:g} is not a share of a length; give 0 to 2")
    return Thresholds(query, score)


COMMAND = Command(
    Options,
    run,
    help="whether attention tells queries apart",
    examples=(
        "  sightline analyze injectivity\n"
        "  sightline analyze injectivity --checkpoint runs/quick --limit 100\n"
        "  sightline analyze injectivity --data photos --attention linear --attention inline\n"
        "  sightline analyze injectivity --checkpoint runs/linear --checkpoint runs/inline"
    ),
)
