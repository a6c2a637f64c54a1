"""Studies as sections of one HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sightline.cli.analyze_output import DPI, WORDS
from sightline.engine.report import html

if TYPE_CHECKING:
    from sightline.analysis.studies import Study

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
    """The page as HTML."""
    made = [html.Section(item.title, _blocks(item), "" if item.study else " (missing)") for item in sections]
    made.append(html.Section("Made by", [_about(head)]))
    return html.render(title, made, subtitle=under, warnings=warnings, contents=True)


def _blocks(section: Section) -> list[html.Block]:
    study = section.study
    if study is None:
        return [html.Text(f"Not made: {section.missing}", "missing")]
    blocks: list[html.Block] = [
        html.Picture.draw(figure, f"{study.title}: {name}", DPI) for name, figure in study.figures.items()
    ]
    blocks += [html.Picture(data, name, "gif") for name, data in study.animations.items()]
    if study.rows:
        numeric = frozenset(i for i, column in enumerate(study.columns) if column not in WORDS)
        blocks.append(html.Table(study.rows[:MAX_ROWS], study.columns, numeric))
        if (more := len(study.rows) - MAX_ROWS) > 0:
            blocks.append(html.Text(f"and {more} more rows in {study.name}.json"))
    return [*blocks, *(html.Text(note) for note in study.notes)]


def _about(head: Mapping[str, Any]) -> html.Table:
    rows = [(key, str(head[key])) for key in ("instrument", "sightline", "torch", "device") if head.get(key)]
    rows += [(f"model {i}", _model(item)) for i, item in enumerate(head["models"], 1)]
    if head.get("images") is not None:
        rows.append(("images", f"{len(head['images'])}, first {head['images'][0]}"))
    return html.Table(rows)


def _model(item: Mapping[str, Any]) -> str:
    weights = "random weights" if item["random"] else f"weights of {item['checkpoint']}"
    size = "x".join(map(str, item["input_size"][1:]))
    return f"{item['title']}: {item['model']}, {weights}, images of {size}"
