"""The report of a run as sections of a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sightline.analysis.study import Facts
from sightline.engine.records import Scores
from sightline.engine.report.html import Cards, Code, Columns, Hover, Picture, Section, Table, Text, render
from sightline.engine.report.record import Record
from sightline.engine.settings import dump
from sightline.tasks.describe import describe
from sightline.util.names import rate_cell

MAX_CLASSES = 50  # rows of the table of classes: beyond, those with the lowest accuracy
ATTENTION = (
    "Point at a patch: every map shows its attention, mean over heads, as a multiple of uniform attention, on a scale "
    "of its own. Orange is positive; blue and hatched is negative. A click holds the query, arrows move it. The files "
    "in attention/ show the query in the middle of the image."
)
BLOCKS = (
    "Squared error of the attention of every block over the variance of the teacher's, on the teacher's own inputs, in "
    "the first and the last evaluation."
)


def run_page(record: Record, figures: Mapping[str, Path], hovers: Mapping[str, Facts]) -> str:
    """The page of a run as HTML.

    Args:
        record: what the run folder holds.
        figures: files of the figures that could be drawn: `curves`, `confusion`, `attention/01` and so on.
        hovers: the maps of `attention/01` and so on for all queries.
    """
    sections = [Section("", [Cards(_cards(record))])]
    if "curves" in figures:
        sections.append(Section("Learning curves", [Picture.read(figures["curves"], "learning curves")]))
    if "blocks" in figures:
        picture = Picture.read(figures["blocks"], "error of the attention of every block")
        sections.append(Section("Error by block", [picture, Text(BLOCKS, "under")]))
    if record.confusion:
        matrix = [Picture.read(figures["confusion"], "confusion matrix")] if "confusion" in figures else []
        sections.append(Section("Classes", [Columns([*matrix, _confusion_table(record)])]))
    elif record.found:
        sections.append(Section("Classes", [_found_table(record.found, record.spec.shown)]))
    maps = [
        Hover(hovers[name], Picture.read(path, "attention maps")) for name, path in figures.items() if name in hovers
    ]
    if maps:
        sections.append(Section("Attention", [*maps, Text(ATTENTION, "under")]))
    versions = [(key, str(value)) for key, value in record.versions.items() if value is not None]
    sections.append(Section("Made by", [Table(versions)]))
    sections.append(Section("Configuration", [Code(dump(record.config))]))
    return render(record.name, sections, subtitle=_model(record.config.get("model", {})))


def _model(section: Mapping[str, object]) -> str:
    args = section.get("args")
    if section.get("attention") and isinstance(args, Mapping):  # a key of its own for sequences
        args = {**args, "attention": section["attention"]}
    title = describe(str(section.get("name", "?")), args if isinstance(args, Mapping) else None)
    return f"{section['head']} on {title}" if section.get("head") else title


def _cards(record: Record) -> list[tuple[str, str]]:
    best, last = record.best(), record.rows[-1] if record.rows else {}
    shown = {key: title for key, title in record.spec.shown.items() if key != "top5" or len(record.classes) > 5}
    cards = [
        *((f"{title}, best", _percent(best.get(key))) for key, title in shown.items()),
        ("calibration error", _percent(best.get("ece"))),
        ("epoch of the best", _number(best.get("epoch"), 0)),
        ("training loss, last", _number(last.get("train_loss"), 3)),
        (f"{record.spec.unit} / s", _rate(last.get("images_per_second"))),
    ]
    return [(label, value) for label, value in cards if value]


def _confusion_table(record: Record) -> Table:
    """One row per class: counts, accuracy, precision, and the class it is confused with most often."""
    counts = np.asarray(record.confusion, dtype=float)
    images, chosen, right = counts.sum(1), counts.sum(0), counts.diagonal()
    order = np.argsort(right / np.maximum(images, 1), kind="stable")
    shown = order[:MAX_CLASSES] if len(order) > MAX_CLASSES else range(len(order))
    names = record.classes if len(record.classes) == len(counts) else [str(i) for i in range(len(counts))]
    pixels = record.spec.counted == "pixels"
    rows = []
    for i in shown:
        others = counts[i].copy()
        others[i] = 0
        often = _share(others.max(), images[i]) if pixels else f"{others.max():.0f}"
        most = f"{names[int(others.argmax())]} ({often})" if others.max() else ""
        iou = [_share(right[i], images[i] + chosen[i] - right[i])] if pixels else []
        rows.append([names[i], f"{images[i]:,.0f}", _share(right[i], images[i]), _share(right[i], chosen[i]),
                     *iou, most])  # fmt: skip
    titles = [record.spec.counted or record.spec.unit, "accuracy", "precision", *(["IoU"] if pixels else [])]
    caption = f"The {MAX_CLASSES} classes with the lowest accuracy." if len(order) > MAX_CLASSES else ""
    numeric = frozenset(range(1, 1 + len(titles)))
    return Table(rows, ["class", *titles, "most often confused with"], numeric, caption)


def _found_table(rows: Sequence[Scores], shown: Mapping[str, str]) -> Table:
    """Scores by class, the lowest first."""
    keys = [key for key in shown if key in rows[0]]
    order = sorted(rows, key=lambda row: score if isinstance(score := row[keys[0]], int | float) else -1.0)
    cells = [[str(row.get("class")), *(_percent(row.get(key)) or "-" for key in keys)] for row in order[:MAX_CLASSES]]
    caption = f"The {MAX_CLASSES} classes with the lowest {shown[keys[0]]}." if len(rows) > MAX_CLASSES else ""
    return Table(cells, ["class", *(shown[key] for key in keys)], frozenset(range(1, 1 + len(keys))), caption)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _percent(value: object) -> str:
    return f"{value:.2f} %" if isinstance(value, int | float) and value == value else ""


def _rate(value: object) -> str:
    return rate_cell(value) if isinstance(value, int | float) else "-"


def _number(value: object, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) and value == value else ""
