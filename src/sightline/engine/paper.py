"""Papers as lists of studies: every figure and table that models and images allow, on one HTML page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


Section = Callable[[Material], Study] | str  # what makes a figure or table, or why it is not made here


def _maps(material: Material) -> Study:
    """Five layers from the first to the last."""
    session = material.session
    grids = [block_grids(subject.model, subject.images[0]).values() for subject in session.subjects]
    depth = min(sum(height * width > 1 for height, width in each) for each in grids)
    layers = first_to_last(depth, 5)
    return study_maps(session.subjects, session.picture(), session.names[0], material.queries, layers=layers)


def _masking(material: Material) -> Study:
    session = material.session
    if not session.checkpoint:
        raise InputError("random weights have no accuracy to lose; give --checkpoint")
    return study_masking(session.labelled(material.labelled), (3, 5, 7), session.seed)


def _memory(material: Material) -> Study:
    return study_memory(range(1, material.longest + 1), device=material.session.device)


# By name: the title of a paper and its sections.
PAPERS: dict[str, tuple[str, dict[str, Section]]] = {
    "inline": (
        "Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine)",
        {
            "Fig. 1: collinear queries": lambda _: study_toy(),
            "Fig. 2: confusions": lambda material: study_confusions(material.session.subjects),
            "Certificates of injectivity": lambda material: study_certificates(material.session.subjects),
            "Fig. 3: locality": lambda material: study_locality(material.session.subjects),
            "Fig. 4: attention maps": _maps,
            "Table: masking": _masking,
            "Effective rank": lambda material: study_rank(material.session.subjects),
            "Table: kernels, residual, windows": RUNS,
            "Table: other linear attentions": RUNS,
            "Figures: speed": "`sightline bench models --plot` measures throughput against resolution and window",
            "Tables: detection and segmentation": "they need COCO and ADE20K, and models trained on them",
        },
    ),
    "soft": (
        "Softmax-free Linear Transformers (SOFT and SOFT++)",
        {
            "Fig. 1b: memory": _memory,
            "Fig. 5: Newton convergence": lambda material: study_newton(material.session.subjects),
            "Attention heat maps": _maps,
            "Effective rank": lambda material: study_rank(material.session.subjects),
            "Table: other attentions in the same backbone": RUNS,
            "Table: number and kind of landmarks": RUNS,
            "Tables: detection, segmentation, Long Range Arena": "they need their data, and models trained on them",
        },
    ),
}


def make_section(section: Section, material: Material) -> Study | str:
    """A study, or why it is missing: bad input, or a model that cannot take the images."""
    if isinstance(section, str):
        return section
    try:
        return section(material)
    except (ValueError, RuntimeError) as error:
        return " ".join(str(error).split())


def write_paper(folder: Path, which: str, made: Mapping[str, Study | str], session: Session) -> Path:
    """Write the page of a paper, `WHICH.html`, and the files of its studies next to it; returns its path."""
    studies = [study for study in made.values() if isinstance(study, Study)]
    facts = session.describe(f"paper {which}")
    write_studies(folder, facts, studies)
    sections = [
        html.Section(title, _blocks(found), " (missing)" if isinstance(found, str) else "")
        for title, found in made.items()
    ]
    sections.append(html.Section("Made by", [_about(facts)]))
    subtitle = f"{len(studies)} of {len(made)} figures and tables could be made from the input"
    path, title = folder / f"{which}.html", PAPERS[which][0]
    write_text(path, html.render(title, sections, subtitle=subtitle, warnings=session.warnings, contents=True))
    return path


def _blocks(study: Study | str) -> list[html.Block]:
    if isinstance(study, str):
        return [html.Text(f"Not made: {study}", "missing")]
    blocks: list[html.Block] = [
        html.Picture.draw(figure, f"{study.title}: {name}", DPI) for name, figure in study.figures.items()
    ]
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
