"""The goals for what users get by plain calls, and whether runs of `sightline bench --preset plain` meet them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sightline.bench import Report, Row
from sightline.bench.peers import FLASH_BLA, FLEX
from sightline.bench.results import COMPILED, EAGER, MISSING
from tables.goals import Goal, goal

GRAPHS = "reduce-overhead"
DEIT, TIMM = "inline_deit_tiny", "timm deit_tiny_patch16_224"
FAMILIES = ("inline_swin_tiny", "inline_pvt_small", "inline_cswin_tiny", "soft_tiny")
PEERS = (FLEX, FLASH_BLA, "timm efficientvit_b1 512", "timm efficientvit_b1 1024", "timm efficientvit_b2 512",
         "timm efficientvit_b2 1024")  # fmt: skip
Time = Callable[[Row], float | None]


@dataclass(frozen=True)
class Wanted:
    """A ratio of two rows of a run, and its limit; `of` and `to` are kind, case, mode, candidate and how."""

    number: int
    what: str
    case: str
    of: tuple[str, ...]
    to: tuple[str, ...]
    sign: str
    limit: float
    form: str = "{:.2f}x"
    time: Time = lambda row: row.call_ms

    def value(self, rows: Sequence[Row]) -> float | None:
        """Time of `of` relative to `to` for an upper limit, speed for a lower one; None if not measured."""
        times = [self.time(row) if row else None for row in (_find(rows, self.of), _find(rows, self.to))]
        if not times[0] or not times[1]:
            return None
        return times[0] / times[1] if self.sign == "<=" else times[1] / times[0]


def _find(rows: Sequence[Row], key: tuple[str, ...]) -> Row | None:
    return next((r for r in rows if (r.kind, r.case, r.mode, r.candidate, r.how) == key), None)


def _deit(size: int, mode: str, how: str, candidate: str = DEIT) -> tuple[str, ...]:
    return "model", f"{DEIT} {size}", mode, candidate, how


def wanted() -> Iterator[Wanted]:
    """Every goal with a limit."""
    share = "{:.0%}"
    for number, size, over_timm, of_none in ((1, 224, 1.25, 0.88), (2, 1024, 2.1, 0.90)):
        case, own = f"deit_tiny {size}, training step, compiled", _deit(size, "train", COMPILED)
        yield Wanted(number, "speed against timm", case, own, _deit(size, "train", COMPILED, TIMM), ">=", over_timm)
        none = _deit(size, "train", COMPILED, f"{DEIT} none")
        yield Wanted(number, "of the network without attention", case, own, none, ">=", of_none, share)
    for number, size, how, limit in (
        (3, 1024, EAGER, 1.0), (3, 1024, COMPILED, 0.8), (3, 1024, GRAPHS, 0.6), (4, 224, EAGER, 1.05),
    ):  # fmt: skip
        of, to = (_deit(size, "latency", how, name) for name in (DEIT, TIMM))
        yield Wanted(number, "time against timm", f"deit_tiny {size}, one image, {how}", of, to, "<=", limit)
    module = ("module", "8,6,32,1+14x14", "forward")
    yield Wanted(5, "host time against timm's module", "attention module, eager", (*module, "inline module", EAGER),
                 (*module, "timm Attention", EAGER), "<=", 1.2, time=lambda row: row.host_ms)  # fmt: skip
    operator = ("op", "8,6,32,1+14x14", "forward+backward", "inline triton")
    yield Wanted(6, "host time, compiled against eager", "operator with gradient", (*operator, COMPILED),
                 (*operator, EAGER), "<=", 0.5, time=lambda row: row.host_ms)  # fmt: skip
    for size in (224, 384, 1024):
        of, to = (_deit(size, "forward", COMPILED, name) for name in (DEIT, f"{DEIT} none"))
        what = "of the network without attention"
        yield Wanted(7, what, f"deit_tiny {size}, inference, compiled", of, to, ">=", 0.92, share)
    for recipe in ("imagenette", "imagenette_deit"):
        of, to = (("run", recipe, "train", name, "auto") for name in ("inline", "softmax"))
        yield Wanted(8, "speed against the softmax twin", f"sightline train --config {recipe}", of, to, ">=", 1.2,
                     time=lambda row: 1 / row.images_per_s if row.images_per_s else None)  # fmt: skip
    for name in FAMILIES:
        of, to = (("model", f"{name} 224", "train", name, how) for how in (COMPILED, GRAPHS))
        yield Wanted(9, f"speed, compiled against {GRAPHS}", f"{name} 224, training step", of, to, ">=", 0.85)


def evaluate_plain(reports: Sequence[Report]) -> list[Goal]:
    """Every goal, by the newest report that has its rows; one that no report has is not met."""
    newest = sorted(reports, key=lambda report: report.about["date"], reverse=True)
    found = []
    for each in wanted():
        values = (each.value(report.rows) for report in newest)
        value = next((value for value in values if value is not None), None)
        judged = goal(each.number, each.what, each.case, value or 0.0, each.sign, each.limit, each.form)
        found.append(judged if value is not None else replace(judged, measured="not measured", met=False))
    return [*found, *(_peer(name, newest) for name in PEERS)]


def _peer(name: str, reports: Sequence[Report]) -> Goal:
    """Whether a peer was measured next to ours; one that cannot be installed is noted in the tables."""
    rows = [row for report in reports for row in report]
    mine = [r for r in rows if name in (r.candidate, f"{r.candidate} {r.height}")]
    best = next((r for r in mine if r.ms), mine[0] if mine else None)
    if best is None:
        measured = "not measured"
    elif best.ms and best.kind == "model":
        measured = f"{best.batch / best.ms * 1e3:,.0f} images/s"
    else:
        measured = f"{best.ms:.3g} ms" if best.ms else best.status
    met = best is not None and bool(best.ms or best.status == MISSING)
    return Goal(10, "peer in the same run", name, measured, "in the tables", met)
