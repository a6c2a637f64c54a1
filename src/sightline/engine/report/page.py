"""The report as one HTML page that needs nothing else: styles and pictures are inside it, and no script."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sightline.engine.report.record import Record
from sightline.engine.settings import dump
from sightline.tasks.classification.names import describe
from sightline.tasks.dense.names import BY_CLASS, MAIN

STYLE = """
:root { color-scheme: light; --line: #d9dde3; --soft: #5b6470; --accent: #1f5fa8; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2128; background: #f6f7f9; margin: 0; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 30px 0 10px; }
.under { color: var(--soft); margin: 2px 0 18px; overflow-wrap: anywhere; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; min-width: 118px; }
.card b { display: block; font-size: 23px; color: var(--accent); } .card span { color: var(--soft); font-size: 13px; }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 10px; }
img { max-width: 100%; height: auto; display: block; margin: 0 auto; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 12px;
  align-items: start; }
table { border-collapse: collapse; background: #fff; border: 1px solid var(--line); width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 4px 10px; border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
td:first-child { min-width: 7em; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
pre { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 12px; margin: 0; columns: 3 270px; }
figcaption { color: var(--soft); font-size: 13px; margin-top: 6px; }
.wide { overflow-x: auto; }
@media print { body { background: #fff; } figure, table, .card { break-inside: avoid; } }
"""
MAX_CLASSES = 50  # rows of the table of classes: beyond, those with the lowest accuracy


def render(record: Record, figures: Mapping[str, Path], attention: Sequence[Path]) -> str:
    """The page as text. Everything from files is escaped: a class may be called `<script>`."""
    best = record.best()
    parts = [
        f"<h1>{escape(record.name)}</h1>",
        f'<p class="under">{escape(_model(record.config.get("model") or {}))}</p>',
        _cards(record, best),
    ]
    if "curves" in figures:
        parts += ["<h2>Learning curves</h2>", _figure(figures["curves"], "learning curves")]
    if record.confusion is not None:
        parts.append("<h2>Classes</h2>")
        matrix = _figure(figures["confusion"], "confusion matrix") if "confusion" in figures else ""
        parts.append(f'<div class="two">{matrix}{_classes(record)}</div>')
    elif record.found:
        parts += ["<h2>Classes</h2>", _found(record.found)]
    if attention:
        caption = (
            "Attention of the query in the ring, mean over heads, as a multiple of even attention; every map has "
            "its own scale. Where weights are negative, blue is negative, white zero, red positive; else dark is least."
        )
        parts.append("<h2>Attention</h2>")
        parts.append('<div class="two">' + "".join(_figure(path, "attention maps") for path in attention) + "</div>")
        parts.append(f"<p class='under'>{caption}</p>")
    parts += ["<h2>Made by</h2>", _versions(record), "<h2>Configuration</h2>", _config(record.config)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(record.name)}</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _model(section: Mapping[str, Any]) -> str:
    args = section.get("args")
    if section.get("attention") and isinstance(args, Mapping):  # a key of its own for sequences
        args = {**args, "attention": section["attention"]}
    words = describe(str(section.get("name", "?")), args)
    return f"{section['head']} on {words}" if section.get("head") else words


def _cards(record: Record, best: Mapping[str, Any]) -> str:
    last = record.rows[-1] if record.rows else {}
    figures = [
        ("top-1, best", _percent(best.get("top1"))),
        ("top-5", _percent(best.get("top5")) if len(record.classes) > 5 else ""),
        *((f"{words}, best", _percent(best.get(key))) for key, words in MAIN.items()),
        ("calibration error", _percent(best.get("ece"))),
        ("epoch of the best", _plain(best.get("epoch"))),
        ("training loss, last", _plain(last.get("train_loss"), 3)),
        (f"{record.unit} / s", _plain(last.get("images_per_second"), 0)),
    ]
    cells = [f'<div class="card"><b>{value}</b><span>{title}</span></div>' for title, value in figures if value]
    return f'<div class="cards">{"".join(cells)}</div>'


def _classes(record: Record) -> str:
    counts = np.asarray(record.confusion, dtype=float)
    images, chosen, right = counts.sum(1), counts.sum(0), counts.diagonal()
    order = np.argsort(right / np.maximum(images, 1), kind="stable")
    shown = order[:MAX_CLASSES] if len(order) > MAX_CLASSES else range(len(order))
    names = record.classes if len(record.classes) == len(counts) else [str(i) for i in range(len(counts))]
    by_pixel = record.task == "segmentation"
    rows = []
    for i in shown:
        others = counts[i].copy()
        others[i] = 0
        often = _share(others.max(), images[i]) if by_pixel else f"{others.max():.0f}"
        most = f"{escape(names[int(others.argmax())])} ({often})" if others.max() else ""
        numbers = [f"{images[i]:,.0f}", _share(right[i], images[i]), _share(right[i], chosen[i])]
        if by_pixel:
            numbers.append(_share(right[i], images[i] + chosen[i] - right[i]))
        cells = "".join(f"<td class=n>{number}</td>" for number in numbers)
        rows.append(f"<tr><td>{escape(names[i])}</td>{cells}<td>{most}</td></tr>")
    titles = ["pixels" if by_pixel else record.unit, "accuracy", "precision", *(["IoU"] if by_pixel else [])]
    head = "<tr><th>class</th>" + "".join(f"<th class=n>{title}</th>" for title in titles)
    note = f"<figcaption>The {MAX_CLASSES} classes with the lowest accuracy.</figcaption>"
    return (
        f"<div class=wide><table>{head}<th>most often taken for</th></tr>{''.join(rows)}</table>"
        f"{note if len(order) > MAX_CLASSES else ''}</div>"
    )


def _found(rows: Sequence[Mapping[str, Any]]) -> str:
    """Scores of a detector by class, the lowest first."""
    keys = [key for key in ("box_ap", "mask_ap") if key in rows[0]]
    order = sorted(rows, key=lambda row: -1.0 if row["box_ap"] is None else row["box_ap"])
    body = "".join(
        f"<tr><td>{escape(str(row.get('class')))}</td>"
        + "".join(f"<td class=n>{_percent(row.get(key)) or '-'}</td>" for key in keys)
        + "</tr>"
        for row in order[:MAX_CLASSES]
    )
    head = "<tr><th>class</th>" + "".join(f"<th class=n>{BY_CLASS[key]}</th>" for key in keys) + "</tr>"
    note = f"<figcaption>The {MAX_CLASSES} classes with the lowest box AP.</figcaption>"
    return f"<div class=wide><table>{head}{body}</table>{note if len(rows) > MAX_CLASSES else ''}</div>"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _versions(record: Record) -> str:
    rows = [
        f"<tr><td>{escape(str(key))}</td><td>{escape(str(value))}</td></tr>"
        for key, value in record.versions.items()
        if value is not None
    ]
    return f"<div class=wide><table>{''.join(rows)}</table></div>"


def _config(config: Mapping[str, Any]) -> str:
    return f"<pre>{escape(dump(config))}</pre>"


def _figure(path: Path, alt: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></figure>'


def _percent(value: Any) -> str:
    return f"{value:.2f} %" if isinstance(value, int | float) and value == value else ""


def _plain(value: Any, digits: int | None = None) -> str:
    if not isinstance(value, int | float) or value != value:
        return ""
    return f"{value:,}" if digits is None else f"{value:,.{digits}f}"
