"""Studies as sections of one HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sightline.analysis.studies.paper import PAPERS, Section
from sightline.analysis.studies.study import DPI, Study, write_studies
from sightline.engine.report import html
from sightline.util.files import write_text
from sightline.util.names import format_size

MAX_ROWS = 60  # of a table; the rest is in the JSON file


def write_paper(
    folder: Path, which: str, sections: Sequence[Section], head: Mapping[str, Any], warnings: Sequence[str]
) -> Path:
    """Write a paper's page, `WHICH.html`, with the files of its studies next to it; returns its path.

    Args:
        which: a key of `PAPERS`.
        head: what `Session.describe` returns.
        warnings: lines that a reader must not miss.
    """
    studies = [section.study for section in sections if section.study]
    write_studies(folder, head, studies)
    made = [html.Section(item.title, _blocks(item), "" if item.study else " (missing)") for item in sections]
    made.append(html.Section("Made by", [_about(head)]))
    subtitle = f"{len(studies)} of {len(sections)} figures and tables could be made from the input"
    path = folder / f"{which}.html"
    write_text(path, html.render(PAPERS[which].title, made, subtitle=subtitle, warnings=warnings, contents=True))
    return path


def _blocks(section: Section) -> list[html.Block]:
    if section.study is None:
        return [html.Text(f"Not made: {section.missing}", "missing")]
    study: Study = section.study
    blocks: list[html.Block] = [
        html.Picture.draw(figure, f"{study.title}: {name}", DPI) for name, figure in study.figures.items()
    ]
    blocks += [html.Picture(data, name, "gif") for name, data in study.animations.items()]
    if study.rows:
        blocks.append(html.Table(study.rows[:MAX_ROWS], study.columns, study.numeric))
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
    return f"{item['title']}: {item['model']}, {weights}, images of {format_size(item['input_size'][1:])}"
