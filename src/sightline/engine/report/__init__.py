"""The report of a run: figures and one page, made from the files of its folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from sightline.engine.report.attention import draw_attention
from sightline.engine.report.figures import confusion_figure, curves_figure
from sightline.engine.report.page import run_page
from sightline.engine.report.record import read_record
from sightline.util.files import write_atomic, write_text

__all__ = ["write_report"]


def write_report(folder: Path, note: Callable[[str], None] = print) -> Path:
    """Draw `curves.png`, `confusion.png` and `attention/*.png` into a run folder, and write its `report.html`.

    Only files of the folder are read, and for the attention maps the images that its configuration names. A part that
    cannot be made is left out of the page and reported: a finished run gets its page in any case.

    Args:
        folder: with `config.yaml`, `metrics.jsonl` and whatever else the run wrote.
        note: called with a line about parts that are missing.

    Returns:
        The path of the page.

    Raises:
        ValueError: the folder holds no run.
    """
    record = read_record(folder)
    figures: dict[str, Path] = {}
    pictures: list[Path] = []
    try:
        for name, draw in (("curves", curves_figure), ("confusion", confusion_figure)):
            figure = draw(record)
            if figure is not None:
                figures[name] = folder / f"{name}.png"
                write_atomic(figures[name], partial(figure.savefig, dpi=110, bbox_inches="tight"))
        pictures = draw_attention(folder, record)
    except (ValueError, OSError, RuntimeError) as error:
        note(f"the report is not complete: {' '.join(str(error).split())}")
    page = folder / "report.html"
    write_text(page, run_page(record, figures, pictures))
    return page
