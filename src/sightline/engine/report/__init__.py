"""The report of a run: figures and one page, made from the files of its folder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.analysis.capture import attention_blocks
from sightline.analysis.figures import attention_figure, telling_calls
from sightline.analysis.hover import hover_maps
from sightline.analysis.maps import maps_of
from sightline.analysis.study import Facts
from sightline.engine.evaluate import run_data
from sightline.engine.report.figures import blocks_figure, confusion_figure, curves_figure, write_figure
from sightline.engine.report.page import run_page
from sightline.engine.report.record import Record, read_record
from sightline.hub import load
from sightline.util.files import write_text
from sightline.util.text import one_line, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_report"]

QUERY = (0.5, 0.5)  # of the attention maps


def write_report(folder: Path, note: Callable[[str], object] = say) -> Path:
    """Draw `curves.png`, `confusion.png` and `attention/*.png` into a run folder, and write its `report.html`.

    Only files of the folder are read, and for the attention maps the images that its configuration names. A part that
    cannot be made is left out of the page and reported: a finished run gets its page in any case.

    Args:
        folder: with `config.yaml`, `metrics.jsonl` and whatever else the run wrote.
        note: called with a line about parts that are missing.

    Returns:
        The path of the page.

    Raises:
        FileError: the folder holds no run.
    """
    record = read_record(folder)
    drawn: dict[str, Path] = {}
    hovers: dict[str, Facts] = {}
    try:
        for name, figure in _figures(folder, record, hovers):
            write_figure(folder / f"{name}.png", figure)
            drawn[name] = folder / f"{name}.png"
    except (ValueError, OSError, RuntimeError) as error:
        note(f"the report is not complete: {one_line(error)}")
    page = folder / "report.html"
    write_text(page, run_page(record, drawn, hovers))
    return page


def _figures(folder: Path, record: Record, hovers: dict[str, Facts]) -> "Iterator[tuple[str, Figure]]":
    """The figures of a run by the names of their files; the maps of all queries go into `hovers` by the same names."""
    if (curves := curves_figure(record)) is not None:
        yield "curves", curves
    if (blocks := blocks_figure(record)) is not None:
        yield "blocks", blocks
    if record.confusion:
        yield "confusion", confusion_figure(record.classes, record.confusion)
    if not record.spec.pictures:
        return
    loaded = load(folder)
    if not attention_blocks(loaded.model):
        raise ValueError(f"{loaded.card.name} has no attention blocks of sightline")
    section = run_data(folder, record.spec.name)
    for number, (title, image, picture) in enumerate(record.spec.examples(loaded, section), 1):
        name, calls = f"attention/{number:02d}", telling_calls(loaded.model, image)
        hovers[name] = hover_maps(title, picture, calls)
        yield name, attention_figure([(title, picture, maps_of(calls, QUERY))])
