"""Papers as lists of studies: every figure and table that models and images allow, on one HTML page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sightline.analysis.certificate import study_certificates
from sightline.analysis.confusions import study_confusions
from sightline.analysis.figures import first_to_last
from sightline.analysis.locality import study_locality
from sightline.analysis.map_study import study_maps
from sightline.analysis.maps import Patch, Query, block_grids
from sightline.analysis.masking import study_masking
from sightline.analysis.memory import study_memory
from sightline.analysis.newton import study_newton
from sightline.analysis.rank import study_rank
from sightline.analysis.study import DPI, Facts, Study, write_studies
from sightline.analysis.toy import study_toy
from sightline.engine.analyze import Session
from sightline.engine.report import html
from sightline.util.errors import InputError
from sightline.util.files import write_text
from sightline.util.names import format_size

RUNS = "every row is a separate training run; train each with `sightline train`, compare with `sightline eval`"
MAX_ROWS = 60  # of a table; the rest is in the JSON file


TITLES = {
    "inline": "Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine)",
    "soft": "Softmax-free Linear Transformers (SOFT and SOFT++)",
}
Section = Callable[[], Study] | str  # what makes a figure or table, or why it is not made here


def sections(
    which: str, session: Session, queries: Sequence[Query | Patch], labelled: int, longest: int
) -> dict[str, Section]:
    """The sections of a paper.

    Args:
        which: inline or soft.
        session: models and images, if there are any.
        queries: of the attention maps.
        labelled: the number of images of the masking table.
        longest: memory is measured up to 784 times as many tokens.
    """
    if which == "inline":
        return {
            "Fig. 1: collinear queries": study_toy,
            "Fig. 2: confusions": lambda: study_confusions(session.subjects),
            "Certificates of injectivity": lambda: study_certificates(session.subjects),
            "Fig. 3: locality": lambda: study_locality(session.subjects),
            "Fig. 4: attention maps": lambda: _maps(session, queries),
            "Table: masking": lambda: _masking(session, labelled),
            "Effective rank": lambda: study_rank(session.subjects),
            "Table: kernels, residual, windows": RUNS,
            "Table: other linear attentions": RUNS,
            "Figures: speed": "`sightline bench models --plot` measures throughput against resolution and window",
            "Tables: detection and segmentation": "they need COCO and ADE20K, and models trained on them",
        }
    return {
        "Fig. 1b: memory": lambda: study_memory(range(1, longest + 1), device=session.device),
        "Fig. 5: Newton convergence": lambda: study_newton(session.subjects),
        "Attention heat maps": lambda: _maps(session, queries),
        "Effective rank": lambda: study_rank(session.subjects),
        "Table: other attentions in the same backbone": RUNS,
        "Table: number and kind of landmarks": RUNS,
        "Tables: detection, segmentation, Long Range Arena": "they need their data, and models trained on them",
    }


def _maps(session: Session, queries: Sequence[Query | Patch]) -> Study:
    """Five layers from the first to the last."""
    grids = [block_grids(subject.model, subject.images[0]).values() for subject in session.subjects]
    depth = min(sum(height * width > 1 for height, width in each) for each in grids)
    layers = first_to_last(depth, 5)
    return study_maps(session.subjects, session.picture(), session.names[0], queries, layers=layers, hover=True)


def _masking(session: Session, labelled: int) -> Study:
    if not session.checkpoint:
        raise InputError("random weights have no accuracy to lose; give a checkpoint")
    return study_masking(session.labelled(labelled), (3, 5, 7), session.seed)


def make_section(section: Section) -> Study | str:
    """A study, or why it is missing: bad input, or a model that cannot take the images."""
    try:
        return section if isinstance(section, str) else section()
    except (ValueError, RuntimeError) as error:
        return " ".join(str(error).split())


def write_paper(folder: Path, which: str, made: Mapping[str, Study | str], session: Session) -> Path:
    """Write the page of a paper, `WHICH.html`, and the files of its studies next to it; returns its path."""
    studies = [study for study in made.values() if isinstance(study, Study)]
    facts = session.describe(f"paper {which}")
    write_studies(folder, facts, studies)
    parts = [
        html.Section(title, _blocks(found), " (missing)" if isinstance(found, str) else "")
        for title, found in made.items()
    ]
    parts.append(html.Section("Made by", [_about(facts)]))
    subtitle = f"{len(studies)} of {len(made)} figures and tables could be made from the input"
    path, title = folder / f"{which}.html", TITLES[which]
    write_text(path, html.render(title, parts, subtitle=subtitle, warnings=session.warnings, contents=True))
    return path


def write_page(path: Path, studies: Sequence[Study], facts: Facts, warnings: Sequence[str]) -> None:
    """Write the page of some studies of one instrument."""
    parts = [html.Section(study.title, _blocks(study)) for study in studies]
    parts.append(html.Section("Made by", [_about(facts)]))
    write_text(path, html.render(f"sightline analyze {facts['instrument']}", parts, warnings=warnings))


def _blocks(study: Study | str) -> list[html.Block]:
    if isinstance(study, str):
        return [html.Text(f"Not made: {study}", "missing")]
    blocks: list[html.Block] = [html.Hover(hover) for hover in study.hovers]
    blocks += [html.Picture.draw(figure, f"{study.title}: {name}", DPI) for name, figure in study.figures.items()]
    if study.rows:
        blocks.append(html.Table(study.rows[:MAX_ROWS], study.columns, study.numeric))
        if (more := len(study.rows) - MAX_ROWS) > 0:
            blocks.append(html.Text(f"and {more} more rows in {study.name}.json"))
    return [*blocks, *(html.Text(note) for note in study.notes)]


def _about(facts: Facts) -> html.Table:
    rows = [(key, facts[key]) for key in ("instrument", "sightline", "torch", "device")]
    for i, model in enumerate(facts["models"], 1):
        weights = "random weights" if model["random"] else f"weights of {model['checkpoint']}"
        size = format_size(model["input_size"][1:])
        rows.append((f"model {i}", f"{model['title']}: {model['model']}, {weights}, images of {size}"))
    if names := facts["images"]:
        rows.append(("images", f"{len(names)}, first {names[0]}"))
    return html.Table(rows)
