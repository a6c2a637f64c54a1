"""Papers as lists of studies: every figure and table that models and images allow, and why others are missing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image

from sightline.analysis.maps import Patch, Query, block_grids
from sightline.analysis.studies.injectivity import study_certificates, study_confusions, study_toy
from sightline.analysis.studies.locality import study_locality
from sightline.analysis.studies.maps import Choice, study_maps
from sightline.analysis.studies.masking import Labelled, study_masking
from sightline.analysis.studies.memory import study_memory
from sightline.analysis.studies.newton import require_newton, study_newton
from sightline.analysis.studies.query import find_query
from sightline.analysis.studies.rank import study_rank
from sightline.analysis.studies.study import Study, Subject
from sightline.util.errors import InputError

RUNS = "every row is a separate training run; train each with `sightline train`, compare with `sightline eval`"


@dataclass(frozen=True)
class Material:
    """Input to the sections of a paper.

    Args:
        subjects: models and their images.
        no_images: why there are none, if so.
        labelled: gives models with labeled batches, or raises the reason why there are none.
        picture, name: the first image as it is shown, and its name.
        queries: of the attention maps.
        longest: memory is measured up to 784 times as many tokens.
    """

    subjects: Sequence[Subject]
    labelled: Callable[[], Sequence[Labelled]]
    queries: Sequence[Query | Patch]
    no_images: str = ""
    picture: Image.Image | None = None
    name: str = ""
    seed: int = 0
    longest: int = 8
    device: torch.device | str = "cpu"

    def with_images(self) -> Sequence[Subject]:
        """The subjects, or the reason why there are no images."""
        if self.no_images:
            raise InputError(self.no_images)
        return self.subjects


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


def make_section(title: str, study: Callable[[Material], Study], material: Material) -> Section:
    """Run a study; bad input and models that cannot take the images become the reason why it is missing."""
    try:
        return Section(title, study(material))
    except (ValueError, RuntimeError) as error:
        return Section(title, missing=" ".join(str(error).split()))


def _maps(material: Material) -> Study:
    """Five layers from the first to the last."""
    subjects = material.with_images()
    first = subjects[0].model, subjects[0].images[0]
    queries = tuple(find_query(query, *first) for query in material.queries)
    depth = min(
        sum(grid[0] * grid[1] > 1 for grid in block_grids(subject.model, subject.images[0]).values())
        for subject in subjects
    )
    layers = sorted({round(i * (depth - 1) / 4) for i in range(5)})
    assert material.picture is not None
    return study_maps(subjects, material.picture, material.name, Choice(queries, layers=layers))


def _newton(material: Material) -> Study:
    require_newton(material.subjects)
    return study_newton(material.with_images())


PAPERS = {
    "inline": Paper(
        "Bridging the Divide: Reconsidering Softmax and Linear Attention (InLine)",
        (
            ("Fig. 1: collinear queries", lambda _: study_toy()),
            ("Fig. 2: confusions", lambda material: study_confusions(material.with_images())),
            ("Certificates of injectivity", lambda material: study_certificates(material.with_images())),
            ("Fig. 3: locality", lambda material: study_locality(material.with_images())),
            ("Fig. 4: attention maps", _maps),
            ("Table: masking", lambda material: study_masking(material.labelled(), (3, 5, 7), material.seed)),
            ("Effective rank", lambda material: study_rank(material.with_images())),
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
                lambda material: study_memory(range(1, material.longest + 1), device=material.device),
            ),
            ("Fig. 5: Newton convergence", _newton),
            ("Attention heat maps", _maps),
            ("Effective rank", lambda material: study_rank(material.with_images())),
        ),
        (
            ("Table: other attentions in the same backbone", RUNS),
            ("Table: number and kind of landmarks", RUNS),
            ("Tables: detection, segmentation, Long Range Arena", "they need their data, and models trained on them"),
        ),
    ),
}
