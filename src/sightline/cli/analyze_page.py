"""Studies on one HTML page that needs nothing else: styles and pictures are inside it, and no script."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from sightline.cli.analyze_output import DPI, WORDS
from sightline.engine.report.page import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.analysis.studies import Study

MORE = """
.missing { background: #fff8e6; border: 1px solid #e8d9a8; border-radius: 8px; padding: 8px 14px; }
.warn { color: #8a3b12; } nav { columns: 2 300px; margin: 0 0 8px; } nav a { display: block; color: var(--accent); }
h2 { border-top: 1px solid var(--line); padding-top: 16px; } figure { margin-bottom: 12px; }
.note { color: var(--soft); font-size: 13px; margin: 6px 0; }
"""
MAX_ROWS = 60  # of a table; the rest is in the JSON file


@dataclass(frozen=True)
class Section:
    """A figure or table of a paper: what was made of it, or why it could not be."""

    title: str
    study: "Study | None" = None
    missing: str = ""


def render(
    title: str, under: str, warnings: Sequence[str], sections: Sequence[Section], head: Mapping[str, Any]
) -> str:
    """The page as text. Everything from files is escaped: a model may be called `<script>`."""
    links = "".join(
        f'<a href="#s{i}">{escape(section.title)}{"" if section.study else " (missing)"}</a>'
        for i, section in enumerate(sections)
    )
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="under">{escape(under)}</p>']
    parts += [f'<p class="warn">{escape(warning)}</p>' for warning in warnings]
    parts.append(f"<nav>{links}</nav>")
    parts += [_section(i, section) for i, section in enumerate(sections)]
    parts += ["<h2>Made by</h2>", _about(head)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{MORE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _section(number: int, section: Section) -> str:
    parts = [f'<h2 id="s{number}">{escape(section.title)}</h2>']
    study = section.study
    if study is None:
        parts.append(f'<p class="missing">Not made: {escape(section.missing)}</p>')
        return "\n".join(parts)
    parts += [_figure(figure, f"{study.title}: {name}") for name, figure in study.figures.items()]
    for name, data in study.animations.items():
        encoded = base64.b64encode(data).decode()
        parts.append(f'<figure><img alt="{escape(name)}" src="data:image/gif;base64,{encoded}"></figure>')
    if study.rows:
        parts.append(_table(study))
    parts += [f'<p class="note">{escape(note)}</p>' for note in study.notes]
    return "\n".join(parts)


def _figure(figure: "Figure", alt: str) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=DPI, bbox_inches="tight")
    data = base64.b64encode(out.getvalue()).decode()
    return f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></figure>'


def _table(study: "Study") -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        classes = ["" if title in WORDS else " class=n" for title in study.columns]
        return "".join(f"<{tag}{c}>{escape(cell)}</{tag}>" for c, cell in zip(classes, row, strict=True))

    rows = "".join(f"<tr>{cells('td', row)}</tr>" for row in study.rows[:MAX_ROWS])
    more = len(study.rows) - MAX_ROWS
    note = f"<p class=note>and {more} more rows in {escape(study.name)}.json</p>" if more > 0 else ""
    return f"<div class=wide><table><tr>{cells('th', study.columns)}</tr>{rows}</table></div>{note}"


def _about(head: Mapping[str, Any]) -> str:
    rows = [(key, head[key]) for key in ("instrument", "sightline", "torch", "device") if head.get(key)]
    rows += [(f"model {i}", _model(item)) for i, item in enumerate(head["models"], 1)]
    if head.get("images") is not None:
        rows.append(("images", f"{len(head['images'])}, first {head['images'][0]}"))
    cells = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in rows)
    return f"<div class=wide><table>{cells}</table></div>"


def _model(item: Mapping[str, Any]) -> str:
    weights = "random weights" if item["random"] else f"weights of {item['checkpoint']}"
    size = "x".join(map(str, item["input_size"][1:]))
    return f"{item['title']}: {item['model']}, {weights}, images of {size}"
