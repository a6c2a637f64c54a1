"""`sightline analyze paper`: every figure and table of a paper that a checkpoint and a folder allow, on one page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.cli.analyze_options import Pictures
from sightline.cli.options import Command, UsageError, option, positional
from sightline.cli.query import find_query, parse_query
from sightline.util.names import nearest

if TYPE_CHECKING:
    import torch

    from sightline.analysis.studies import Study, Subject
    from sightline.cli.analyze_images import Gallery
    from sightline.cli.analyze_models import Loaded
    from sightline.cli.analyze_page import Section

PAPERS = {
    "inline": "Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine)",
    "soft": "Softmax-free Linear Transformers (SOFT and SOFT++)",
}
NO_IMAGES = "there are no images; give --data FOLDER, or --checkpoint with a run folder"
RUNS = "every row is a training run of its own; train each with `sightline train`, compare with `sightline eval`"
ELSEWHERE = {
    "inline": (
        ("Table: kernels, residual, windows", RUNS),
        ("Table: other linear attentions", RUNS),
        ("Figures: speed", "`sightline bench models --plot` measures throughput against resolution and window"),
        ("Tables: detection and segmentation", "they need COCO and ADE20K, and models trained on them"),
    ),
    "soft": (
        ("Table: other attentions in the same backbone", RUNS),
        ("Table: number and kind of landmarks", RUNS),
        ("Tables: detection, segmentation, Long Range Arena", "they need their data, and models trained on them"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options(Pictures):
    """Make every figure and table of a paper that the given weights and images allow, on one HTML page.

    The page needs no other file and no network. What could not be made is named with the reason and the remedy.
    """

    which: str = positional("inline or soft")
    labelled: int = option("images of the masking table; by default 200", default=200, metavar="N")
    query: tuple[str, ...] = option(
        "patch or place of the maps; by default 0.5,0.5 and 0.25,0.25; may be repeated", default=(), metavar="PLACE"
    )
    longest: int = option("memory up to 784 p tokens; by default p = 8", default=8, metavar="P")


@dataclass
class Job:
    """What the sections are made from."""

    options: Options
    device: "torch.device"
    models: "list[Loaded]"
    gallery: "Gallery | None"
    why: str  # there are no images, where there are none

    def subjects(self) -> "list[Subject]":
        from sightline.cli.analyze_run import subjects_of

        if self.gallery is None:
            raise UsageError(self.why)
        return subjects_of(self.models, self.gallery, self.device)


def run(options: Options) -> None:
    """Make the sections one by one, write the page and everything on it."""
    from sightline.cli.analyze_page import Section
    from sightline.cli.output import Progress

    if options.which not in PAPERS:
        remedy = nearest(options.which, PAPERS, f"give one of {', '.join(PAPERS)}")
        raise UsageError(f"no paper {options.which!r}; {remedy}")
    job = prepare(options)
    sections = []
    plan = INLINE if options.which == "inline" else SOFT
    with Progress("sections", len(plan)) as progress:
        for title, make in plan:
            progress.begin(title)
            sections.append(attempt(title, partial(make, job)))
            progress.done("made" if sections[-1].study else f"not made: {sections[-1].missing}")
    sections += [Section(title, missing=why) for title, why in ELSEWHERE[options.which]]
    _write(job, sections)


def _write(job: Job, sections: "Sequence[Section]") -> None:
    """The page, the files beside it, and a line a section."""
    from sightline.cli.analyze_output import about, write
    from sightline.cli.analyze_page import render

    which, folder = job.options.which, Path(job.options.out)
    names = job.gallery.names if job.gallery else None
    head = about(f"paper {which}", job.device, job.models, names)
    studies = [section.study for section in sections if section.study]
    write(folder, head, studies)
    warnings = [item.warning for item in job.models if item.warning]
    under = f"{len(studies)} of {len(sections)} figures and tables could be made from what was given"
    page = folder / f"{which}.html"
    page.write_text(render(PAPERS[which], under, warnings, sections, head), encoding="utf-8")
    for line in warnings:
        print(line)
    for section in sections:
        print(f"made     {section.title}" if section.study else f"missing  {section.title}: {section.missing}")
    print(f"wrote {page} and the pictures and numbers on it")


def prepare(options: Options) -> Job:
    """Models, and images where there are any."""
    from sightline.cli.analyze_images import open_gallery
    from sightline.cli.analyze_models import load_models
    from sightline.cli.analyze_run import begin, first

    device = begin(options)
    for text in options.query:
        parse_query(text)
    if options.which == "soft" and not options.checkpoint and options.model is None:
        options = replace(options, model="soft_tiny")
    models = load_models(options, device)
    checkpoint = first(options)
    if options.data is None and (checkpoint is None or not Path(checkpoint).is_dir()):
        return Job(options, device, models, None, NO_IMAGES)
    return Job(options, device, models, open_gallery(options.data, checkpoint, options.limit), "")


def attempt(title: str, make: "Callable[[], Study]") -> "Section":
    """A section, or the reason why there is none."""
    from sightline.cli.analyze_page import Section

    try:
        return Section(title, make())
    except (ValueError, RuntimeError) as error:
        return Section(title, missing=" ".join(str(error).split()))


def _toy(job: Job) -> "Study":
    from sightline.analysis.studies.injectivity import study_toy

    return study_toy()


def _confusions(job: Job) -> "Study":
    from sightline.analysis.studies.injectivity import study_confusions

    return study_confusions(job.subjects())


def _certificates(job: Job) -> "Study":
    from sightline.analysis.studies.injectivity import study_certificates

    return study_certificates(job.subjects())


def _locality(job: Job) -> "Study":
    from sightline.analysis.studies.locality import study_locality

    return study_locality(job.subjects())


def _maps(job: Job) -> "Study":
    from sightline.analysis.studies.maps import Choice, study_maps
    from sightline.engine.report.attention import shown

    subjects = job.subjects()
    assert job.gallery is not None
    asked = [parse_query(text) for text in job.options.query or ("0.5,0.5", "0.25,0.25")]
    queries = tuple(find_query(query, subjects[0].model, subjects[0].images[0]) for query in asked)
    picture = shown(subjects[0].images[0], job.models[0].card)
    depth = min(len(_telling_layers(subject)) for subject in subjects)
    layers = sorted({round(i * (depth - 1) / 4) for i in range(5)})
    return study_maps(subjects, picture, job.gallery.names[0], Choice(queries, layers=layers))


def _telling_layers(subject: "Subject") -> list[str]:
    from sightline.analysis.maps import block_grids

    return [name for name, (down, across) in block_grids(subject.model, subject.images[0]).items() if down * across > 1]


def _masking(job: Job) -> "Study":
    from sightline.analysis.studies.masking import Labelled, study_masking
    from sightline.cli.analyze_images import labelled_for, open_labelled, thinned
    from sightline.cli.analyze_run import first
    from sightline.tasks.classification.data import DataError

    if all(item.checkpoint is None for item in job.models):
        raise UsageError("random weights have no accuracy to lose; give --checkpoint")
    if job.gallery is None:
        raise UsageError(job.why)
    try:
        split = thinned(open_labelled(job.options.data, first(job.options)), job.options.labelled)
    except DataError as error:
        raise UsageError(f"the images have no labels, which are folders of classes ({error})") from error
    subjects = [
        Labelled(item.title, item.model, partial(labelled_for(item, split).batches, item, 16, job.device))
        for item in job.models
    ]
    return study_masking(subjects, (3, 5, 7), job.options.seed)


def _rank(job: Job) -> "Study":
    from sightline.analysis.studies.rank import study_rank

    return study_rank(job.subjects())


def _newton(job: Job) -> "Study":
    from sightline.analysis.studies.newton import study_newton
    from sightline.cli.analyze_spectra import has_soft

    has_soft(job.models)
    return study_newton(job.subjects())


def _memory(job: Job) -> "Study":
    from sightline.analysis.studies.memory import study_memory

    return study_memory(range(1, job.options.longest + 1), device=job.device)


Plan = Sequence[tuple[str, "Callable[[Job], Study]"]]
INLINE: Plan = (
    ("Fig. 1: collinear queries", _toy),
    ("Fig. 2: confusions", _confusions),
    ("Certificates of injectivity", _certificates),
    ("Fig. 3: locality", _locality),
    ("Fig. 4: attention maps", _maps),
    ("Table: masking", _masking),
    ("Effective rank", _rank),
)
SOFT: Plan = (
    ("Fig. 1b: memory", _memory),
    ("Fig. 5: Newton convergence", _newton),
    ("Attention heat maps", _maps),
    ("Effective rank", _rank),
)

COMMAND = Command(
    Options,
    run,
    help="all figures and tables of a paper that weights and images allow, on one page",
    examples=(
        "  sightline analyze paper inline --checkpoint runs/quick --out inline\n"
        "  sightline analyze paper inline --checkpoint runs/softmax --checkpoint runs/inline\n"
        "  sightline analyze paper soft --checkpoint soft.pth --data photos --out soft"
    ),
)
