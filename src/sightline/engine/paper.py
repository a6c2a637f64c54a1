"""Papers as lists of studies: every figure and table that models and images allow, on one HTML page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.analysis.certificate import study_certificates
from sightline.analysis.confusions import study_confusions
from sightline.analysis.figures import first_to_last
from sightline.analysis.locality import study_locality
from sightline.analysis.map_study import Choice, study_maps
from sightline.analysis.maps import Patch, Query, block_grids, in_shares
from sightline.analysis.masking import study_masking
from sightline.analysis.memory import study_memory
from sightline.analysis.newton import study_newton
from sightline.analysis.rank import study_rank
from sightline.analysis.study import DPI, Study, write_studies
from sightline.analysis.toy import study_toy
from sightline.engine.analyze import Session
from sightline.engine.report import html
from sightline.util.errors import InputError
from sightline.util.files import write_text
from sightline.util.names import format_size

RUNS = "every row is a separate training run; train each with `sightline train`, compare with `sightline eval`"
MAX_ROWS = 60  # of a table; the rest is in the JSON file


@dataclass(frozen=True)
class Material:
    """Input to the sections of a paper.

    Args:
        session: models and images, if there are any.
        queries: of the attention maps.
        labelled: the number of images of the masking table.
        longest: memory is measured up to 784 times as many tokens.
    """

    session: Session
    queries: Sequence[Query | Patch]
    labelled: int
    longest: int


@dataclass(frozen=True)
class Section:
    """A figure or table of a paper: the study that makes it, or why it is missing."""

    title: str
    study: Study | None = None
    missing: str = ""


@dataclass(frozen=True)
class Paper:
    """The sections of a paper: those with a study, and those that are made by other commands."""

    title: str
    studies: Sequence[tuple[str, Callable[[Material], Study]]]
    elsewhere: Sequence[tuple[str, str]]


def _maps(material: Material) -> Study:
    """Five layers from the first to the last."""
    session = material.session
    first = session.subjects[0]
    queries = [in_shares(query, first.model, first.images[0]) for query in material.queries]
    grids = [block_grids(subject.model, subject.images[0]).values() for subject in session.subjects]
    depth = min(sum(height * width > 1 for height, width in each) for each in grids)
    choice = Choice(queries, layers=first_to_last(depth, 5))
    return study_maps(session.subjects, session.picture(), session.names[0], choice)


def _masking(material: Material) -> Study:
    session = material.session
    if not session.choice.checkpoints:
        raise InputError("random weights have no accuracy to lose; give --checkpoint")
    return study_masking(session.labelled(material.labelled), (3, 5, 7), session.choice.seed)


PAPERS = {
    "inline": Paper(
        "Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine)",
        (
            ("Fig. 1: collinear queries", lambda _: study_toy()),
            ("Fig. 2: confusions", lambda material: study_confusions(material.session.subjects)),
            ("Certificates of injectivity", lambda material: study_certificates(material.session.subjects)),
            ("Fig. 3: locality", lambda material: study_locality(material.session.subjects)),
            ("Fig. 4: attention maps", _maps),
            ("Table: masking", _masking),
            ("Effective rank", lambda material: study_rank(material.session.subjects)),
        ),
        (
            ("Table: kernels, residual, windows", RUNS),
            ("Table: other linear attentions", RUNS),
            ("Figures: speed", "`sightline bench models --plot` measures throughput against resolution and window"),
            ("Tables: detection and segmentation", "they need COCO and ADE20K, and models trained on them"),
        ),
    ),
    "soft": Paper(
        "Softmax-free Linear Transformers (SOFT and SOFT++)",
        (
            (
                "Fig. 1b: memory",
                lambda material: study_memory(range(1, material.longest + 1), device=material.session.device),
            ),
            ("Fig. 5: Newton convergence", lambda material: study_newton(material.session.subjects)),
            ("Attention heat maps", _maps),
            ("Effective rank", lambda material: study_rank(material.session.subjects)),
        ),
        (
            ("Table: other attentions in the same backbone", RUNS),
            ("Table: number and kind of landmarks", RUNS),
            ("Tables: detection, segmentation, Long Range Arena", "they need their data, and models trained on them"),
        ),
    ),
}


def make_section(title: str, study: Callable[[Material], Study], material: Material) -> Section:
    """Run a study; bad input and models that cannot take the images become the reason why it is missing."""
    try:
        return Section(title, study(material))
    except (ValueError, RuntimeError) as error:
        return Section(title, missing=" ".join(str(error).split()))


def write_paper(folder: Path, which: str, sections: Sequence[Section], session: Session) -> Path:
    """Write the page of a paper, `WHICH.html`, and the files of its studies next to it; returns its path."""
    studies = [section.study for section in sections if section.study]
    what = f"paper {which}"
    write_studies(folder, session.describe(what), studies)
    made = [html.Section(item.title, _blocks(item), "" if item.study else " (missing)") for item in sections]
    made.append(html.Section("Made by", [_about(what, session)]))
    subtitle = f"{len(studies)} of {len(sections)} figures and tables could be made from the input"
    path, title = folder / f"{which}.html", PAPERS[which].title
    write_text(path, html.render(title, made, subtitle=subtitle, warnings=session.warnings, contents=True))
    return path


def _blocks(section: Section) -> list[html.Block]:
    study = section.study
    if study is None:
        return [html.Text(f"Not made: {section.missing}", "missing")]
    blocks: list[html.Block] = [
        html.Picture.draw(figure, f"{study.title}: {name}", DPI) for name, figure in study.figures.items()
    ]
    if study.rows:
        blocks.append(html.Table(study.rows[:MAX_ROWS], study.columns, study.numeric))
        if (more := len(study.rows) - MAX_ROWS) > 0:
            blocks.append(html.Text(f"and {more} more rows in {study.name}.json"))
    return [*blocks, *(html.Text(note) for note in study.notes)]


def _about(what: str, session: Session) -> html.Table:
    rows = [(key, str(session.describe(what)[key])) for key in ("instrument", "sightline", "torch", "device")]
    for i, item in enumerate(session.models, 1):
        weights = "random weights" if item.checkpoint is None else f"weights of {item.checkpoint}"
        size = format_size(item.card.input_size[1:])
        rows.append((f"model {i}", f"{item.title}: {item.name}, {weights}, images of {size}"))
    if session.names:
        rows.append(("images", f"{len(session.names)}, first {session.names[0]}"))
    return html.Table(rows)
