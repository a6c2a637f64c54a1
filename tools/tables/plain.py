"""What plain calls give, as parts of docs/performance.md and the README: tables, goals and figures."""

from collections.abc import Sequence
from pathlib import Path

from sightline.bench import Report, Row
from sightline.bench.plots import Bars, Panel, bars_of, series_of, side
from sightline.bench.results import COMPILED, EAGER
from sightline.bench.tables import number, plain_tables, rate
from tables.bench import commit_of, load_reports
from tables.goals import goal_table
from tables.markdown import table
from tables.plain_goals import DEIT, GRAPHS, TIMM, evaluate_plain

TITLE = "Plain calls"
Case = tuple[str, int, str, int]  # work, pixels, how and batch
NAMES = {DEIT: "InLine", TIMM: "softmax (timm)", f"{DEIT} none": "no attention"}
HOWS = {EAGER: "eager", COMPILED: "compiled", GRAPHS: GRAPHS}
WORKS = {"train": "training step", "forward": "inference", "latency": "one image"}
INTRO = """What a loop in Python gets: wall clock until the GPU is done, everything warm, all candidates in turns. *one
image* waits for the result of every call. *no attention* is the same network with its attention removed."""
LIMITS = """### What limits plain calls

Milliseconds by plain calls / of them the GPU's, by graph replay. Where the first is much more, the host is the limit.
*rounds* is how far the rounds of InLine lie apart, over their median."""
PLOTS = """![Latency of one image](images/latency.png)

![Throughput by plain calls against resolution](images/plain_throughput.png)"""


def plain_reports(folder: Path) -> list[Report]:
    """The runs of the preset on CUDA, newest first."""
    reports = (report for report in load_reports(folder, plain=True).values() if report.about["device"] == "cuda")
    return sorted(reports, key=lambda report: report.about["date"], reverse=True)


def rows_of(reports: Sequence[Report]) -> list[Row]:
    """Every comparison once, from the newest run that has it: what is compared is of one run."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for report in reports:
        compared: dict[tuple[object, ...], list[Row]] = {}
        for row in report:
            compared.setdefault((row.kind, row.case, row.mode, row.how, row.dtype), []).append(row)
        for case, rows in compared.items():
            found.setdefault(case, rows)
    return [row for rows in found.values() for row in rows]


def speed_table(rows: Sequence[Row]) -> str:
    """Images per second of DeiT-Tiny, one line per work, size and way to call it."""
    lines = []
    for (mode, size, how, batch), found in _compared(rows):
        speeds = ["-" if name not in found else _speed(found[name]) for name in NAMES.values()]
        own = found.get("InLine")
        ratio = "-" if own is None else number(own.over_timm, 2)
        share = "-" if own is None or own.of_none is None else f"{own.of_none:.0%}"
        lines.append([WORKS[mode], f"{size} px", HOWS[how], str(batch), *speeds, ratio, share])
    titles = ("work", "size", "how", "batch", *NAMES.values(), "x timm", "of no attention")
    return table(titles, lines, 3)


def limit_table(rows: Sequence[Row]) -> str:
    """Wall clock next to the GPU's time, of the rows of `speed_table` that have both."""
    lines = []
    for (mode, size, how, _), found in _compared(rows):
        own = found.get("InLine")
        if own is None or own.gpu_ms is None:
            continue
        times = [
            "-" if name not in found else f"{number(found[name].call_ms, 2)} / {number(found[name].gpu_ms, 2)}"
            for name in NAMES.values()
        ]
        spread = "-" if own.spread is None else f"{own.spread:.0%}"
        lines.append([WORKS[mode], f"{size} px", HOWS[how], *times, spread])
    return table(("work", "size", "how", *NAMES.values(), "rounds"), lines, 3)


def _compared(rows: Sequence[Row]) -> list[tuple[Case, dict[str, Row]]]:
    """The rows of DeiT-Tiny and what it is compared with, by name, for every work, size, way to call it and batch."""
    cells: dict[Case, dict[str, Row]] = {}
    for row in rows:
        if row.case.rpartition(" ")[0] == DEIT and row.mode in WORKS and row.candidate in NAMES and row.call_ms:
            key = (row.mode, row.height or 0, row.how, row.batch)
            cells.setdefault(key, {})[NAMES[row.candidate]] = row
    return sorted(cells.items(), key=_order)


def _order(item: tuple[Case, object]) -> tuple[int, int, int]:
    (mode, size, how, _), _ = item
    return [*WORKS].index(mode), size, [*HOWS].index(how)


def _speed(row: Row) -> str:
    return f"{row.call_ms:.2f} ms" if row.mode == "latency" else rate(row.call_ms, row.batch)


def made_by(reports: Sequence[Report]) -> str:
    """Machine and versions, once per kind, and commits, the newest first."""
    kinds: dict[str, dict[str, None]] = {}  # the values are ordered sets
    for about in (report.about for report in reports):
        kind = f"one {about['card']}, torch {about['torch']}, timm {about['timm']}, bfloat16"
        kinds.setdefault(kind, {})[commit_of(about)] = None
    text = "; ".join(f"{kind}, {_newest_of(list(commits))}" for kind, commits in kinds.items())
    return text[0].upper() + text[1:]


def _newest_of(commits: Sequence[str]) -> str:
    if len(commits) == 1:
        return commits[0]
    return f"each comparison at the newest of these that has it: {', '.join(commits)}"


def speed_block(folder: Path, more: str) -> str | None:
    """The README's table of plain calls; None without results."""
    reports = plain_reports(folder)
    if not reports:
        return None
    rows = [row for row in rows_of(reports) if _in_speed_table(row)]
    made = made_by([report for report in reports if any(row in rows for row in report)])
    sentence = (
        "DeiT-Tiny with InLine attention by plain calls, in images per second (one image at a time: milliseconds), "
        f"next to softmax. {made}. All measurements, and kernels by graph replay: [{more}]({more})."
    )
    return f"{sentence}\n\n{speed_table(rows)}"


def plain_section(folder: Path) -> str:
    """The first section of docs/performance.md; empty without results."""
    reports = plain_reports(folder)
    if not reports:
        return ""
    rows = rows_of(reports)
    goals = evaluate_plain(reports)
    met = f"{sum(goal.met for goal in goals)} of {len(goals)} goals met."
    commands = dict.fromkeys(word for report in reports for word in report.about["command"].split("; "))
    made = f"{made_by(reports)}. Made by {', '.join(f'`{command}`' for command in commands)}."
    shown = goal_table(goals)
    parts = [f"## {TITLE}", INTRO, made, speed_table(rows), PLOTS, LIMITS, limit_table(rows), "### Goals", met,
             table(shown.titles, shown.rows, 3).replace("| NO |", "| **no** |")]  # fmt: skip
    for title, _, found in plain_tables([row for row in rows if not _in_speed_table(row)]):
        parts += [f"### {title}", table(found.titles, found.rows, found.text)]
    return "\n\n".join(parts)


def _in_speed_table(row: Row) -> bool:
    return row.kind == "model" and row.candidate in NAMES and row.case.startswith(f"{DEIT} ")


def throughput_panels(rows: Sequence[Row]) -> list[Panel]:
    """Inference by plain calls against resolution."""
    mine = [row for row in rows if row.mode == "forward" and _in_speed_table(row) and row.call_ms]
    series = series_of(mine, side, lambda r: r.images_per_s, lambda r: NAMES[r.candidate])
    return [Panel("DeiT-Tiny, inference, compiled, plain calls", "image side, pixels", "images per second", series)]


def latency_bars(rows: Sequence[Row]) -> Bars:
    """Milliseconds of one image."""
    mine = [row for row in rows if _in_speed_table(row)]
    return bars_of(mine, lambda row: f"DeiT-Tiny, one image of {row.height} px", lambda row: NAMES[row.candidate])
