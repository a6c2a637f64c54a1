"""`sightline analyze`: instruments that look inside attention. Each is a row of the table at the end."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from sightline.cli.options import Command, Group, option, positional
from sightline.cli.output import Column, Progress, bar, escaped, print_json, show
from sightline.util.errors import InputError
from sightline.util.names import nearest, parse_model_args, parse_numbers, parse_size

if TYPE_CHECKING:
    from sightline.analysis.study import Study
    from sightline.engine.analyze import Session

MODEL = "inline_deit_tiny"
LIMIT = 32  # images
SHOWN = 40  # rows of a table on the screen; the rest is in the JSON file
COUNTS = ("limit", "labelled", "queries", "iterations", "rows", "batch_size", "longest")  # options that are at least 1


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where results go."""

    out: str = option("folder for figures and numbers; by default analysis", default="analysis", metavar="FOLDER")
    device: str = option("cpu or cuda; by default cuda if available", default="auto", metavar="NAME")
    json: bool = option("print the numbers as JSON", default=False)


@dataclass(frozen=True, kw_only=True)
class Models(Output):
    """Which models to study: every checkpoint with every mechanism."""

    checkpoint: tuple[str, ...] = option(
        "run folder or file of weights; can be repeated. Without one, weights are random", default=(), metavar="PATH"
    )
    model: str | None = option(f"the model; by default the one in the weights, else {MODEL}", metavar="NAME")
    attention: tuple[str, ...] = option(
        "put this mechanism into the model, keeping the weights that fit; can be repeated to compare several",
        default=(), metavar="NAME",
    )  # fmt: skip
    model_args: tuple[str, ...] = option(
        "arguments of the model, as key=value or a JSON object; can be repeated", default=(), metavar="ARGS"
    )
    img_size: str | None = option("pixels, 224 or 384x640 (height x width); by default as trained", metavar="SIZE")
    seed: int = option("seed of random weights; by default 0", default=0, metavar="N")


@dataclass(frozen=True, kw_only=True)
class Images(Models):
    """Models and images."""

    data: str | None = option(
        "images: a file, folder, pattern in quotes, tar file, or embedded; by default those of the run", metavar="PATH"
    )
    limit: int = option(f"number of images, evenly spread; by default {LIMIT}", default=LIMIT, metavar="N")


@dataclass(frozen=True, kw_only=True)
class Maps(Models):
    """Draw the attention of chosen queries of an image, for one mechanism or several side by side.

    A query is a patch of the finest map as row,column from 0,0 on; or fractions of the height and width of the image,
    from 0.0,0.0 to 1.0,1.0, the same at every resolution; or class, the class token. Weights are drawn as multiples of
    uniform attention with their sign. Rows of the attention matrix are computed one by one, O(N), never the matrix.
    """

    image: str = positional("an image file")
    query: tuple[str, ...] = option(
        "patch as 7,3, fractions as 0.5,0.25, or class; by default the centre; can be repeated",
        default=(), metavar="QUERY",
    )  # fmt: skip
    view: Literal["layers", "heads", "rollout"] = option(
        "layers: mean over heads in every layer (default); heads: each head; rollout: all layers in one map",
        default="layers", metavar="VIEW",
    )  # fmt: skip
    layers: str | None = option("layers, 0,5,11 or -1 for the last; by default all", metavar="NUMBERS")
    heads: str | None = option("heads, such as 0,1; by default all", metavar="NUMBERS")
    animate: Literal["layers", "queries", "none"] = option(
        "also write a GIF, over the layers or over queries across the image", default="none", metavar="WHAT"
    )


@dataclass(frozen=True, kw_only=True)
class Injectivity(Images):
    """Measure whether attention separates queries: the InLine paper's toy, confusions, and a certificate by layer.

    A confusion is a pair of clearly different queries with nearly the same scores; the thresholds are options and are
    printed. The certificate of a layer is the rank and smallest singular value of [phi(K), 1], and for linear attention
    two different queries with equal scores. Without images only the toy is made.
    """

    query_distance: float = option(
        "queries are different beyond this fraction of the longer one's length; by default 0.5", default=0.5,
        metavar="X",
    )  # fmt: skip
    score_distance: float = option(
        "scores are equal up to this fraction of the longer row's length; by default 0.01", default=0.01, metavar="X"
    )
    queries: int = option("queries per image that are paired; by default 128", default=128, metavar="N")
    scale: float = option("of the toy's scores; by default 0.68", default=0.68, metavar="X")


@dataclass(frozen=True, kw_only=True)
class Locality(Images):
    """Measure the fraction of attention inside the 3x3 neighborhood of the query, by layer, next to uniform."""

    size: int = option("side of the neighborhood in tokens; by default 3", default=3, metavar="N")
    queries: int = option("queries per image, evenly spread; by default 256", default=256, metavar="N")


@dataclass(frozen=True, kw_only=True)
class Masking(Images):
    """Measure accuracy when every query loses its local 3x3, 5x5 or 7x7 keys, or as many random ones.

    Images need labels: a folder with one folder per class, a tar file, a dataset, or embedded.
    """

    limit: int = option("images to evaluate, evenly spread over classes; by default 500", default=500, metavar="N")
    sizes: str = option("sides of the neighborhoods; by default 3,5,7", default="3,5,7", metavar="NUMBERS")
    batch_size: int = option("images per batch; by default 16", default=16, metavar="N")


@dataclass(frozen=True, kw_only=True)
class Newton(Images):
    """Measure how fast SOFT's Newton iteration converges: ||A A_k A - A|| / ||A|| against k, and condition numbers."""

    iterations: int = option("steps; by default 20", default=20, metavar="K")


@dataclass(frozen=True, kw_only=True)
class Rank(Images):
    """Measure the effective rank of attention by layer: the exponential of the entropy of its singular values.

    Mechanisms with thin factors need no N x N matrix; softmax is measured through at most --rows rows per
    window.
    """

    rows: int = option("rows per window if there are no factors; by default 1024", default=1024, metavar="N")


@dataclass(frozen=True, kw_only=True)
class Memory(Output):
    """Measure peak memory against sequence length: 12 blocks, width 384, 12 heads, 49 landmarks, batch 1, 784 p tokens.

    On CUDA it is the allocator's peak, on a CPU the bytes of live tensors, counted without computing.
    """

    longest: int = option("largest p; by default 8", default=8, metavar="P")
    attention: tuple[str, ...] = option(
        "mechanism, such as inline or soft(landmarks=49); can be repeated; by default the five of SOFT's Fig. 1b",
        default=(), metavar="NAME",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Paper(Images):
    """Make every figure and table of a paper that the given weights and images allow, on one HTML page.

    The page needs no other file and no network. What could not be made is listed with the reason and the remedy.
    """

    which: str = positional("inline or soft")
    labelled: int = option("images of the masking table; by default 200", default=200, metavar="N")
    query: tuple[str, ...] = option(
        "query of the maps; by default 0.5,0.5 and 0.25,0.25; can be repeated", default=(), metavar="QUERY"
    )
    longest: int = option("memory up to 784 p tokens; by default p = 8", default=8, metavar="P")


T = TypeVar("T", bound=Output)


def start(options: Output) -> "Session":
    """Check the options before anything is computed, and choose models, images and device; nothing is loaded yet."""
    import torch

    from sightline.analysis.figures import new_figure
    from sightline.engine.analyze import Session
    from sightline.engine.study_models import ModelChoice
    from sightline.util.device import choose_device

    if not options.out.strip() or (Path(options.out).exists() and not Path(options.out).is_dir()):
        raise InputError(f"--out: expected a folder, got {options.out!r}, which is not one")
    for item in fields(options):
        if item.name in COUNTS and (value := getattr(options, item.name)) < 1:
            raise InputError(f"--{item.name.replace('_', '-')}: expected at least 1, got {value}")
    new_figure(1, 1)  # raises if matplotlib is missing
    if options.device == "auto":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        device = choose_device(options.device, "--device")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device: expected cpu or cuda, got {options.device!r}, which has no float64")
    choice = ModelChoice()
    if isinstance(options, Models):
        size = None if options.img_size is None else parse_size(options.img_size)
        args = parse_model_args(options.model_args)
        choice = ModelChoice(options.checkpoint, options.attention, options.model, args, size, options.seed)
    if isinstance(options, Images):
        return Session(choice, device, options.data, options.limit)
    return Session(choice, device, options.image if isinstance(options, Maps) else None, limit=1)


def odd(name: str, size: int) -> int:
    if size < 1 or size % 2 == 0:
        raise InputError(f"--{name}: expected an odd side, e.g. 3; got {size}")
    return size


@contextmanager
def progress(title: str, session: "Session", total: int | None = None) -> Iterator[Callable[[], None]]:
    """A bar over all images; a model that cannot take the images becomes an `InputError`."""
    count = sum(len(subject.images) for subject in session.subjects) if total is None else total
    try:
        with bar(count, title) as advance:
            yield lambda: advance(1)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"a model failed on images of {session.sizes}: {reason}; give another --img-size") from error


def run_maps(options: Maps, session: "Session") -> "list[Study]":
    from sightline.analysis.map_study import Choice, study_maps
    from sightline.analysis.maps import in_shares, parse_query

    asked = [parse_query(text) for text in options.query or (None,)]
    animate = None if options.animate == "none" else options.animate
    layers, heads = parse_numbers(options.layers, "--layers"), parse_numbers(options.heads, "--heads")
    with progress("maps", session) as tick:
        first = session.subjects[0]
        queries = [in_shares(query, first.model, first.images[0]) for query in asked]
        choice = Choice(queries, options.view, layers, heads, animate)
        return [study_maps(session.subjects, session.picture(), options.image, choice, tick)]


def run_injectivity(options: Injectivity, session: "Session") -> "list[Study]":
    """The toy always; the rest if there are images."""
    from sightline.analysis.certificate import study_certificates
    from sightline.analysis.confusions import Thresholds, study_confusions
    from sightline.analysis.toy import study_toy

    for name, value in (("query-distance", options.query_distance), ("score-distance", options.score_distance)):
        if not 0 <= value < 2:
            raise InputError(f"--{name}: expected a fraction of a length from 0 to 2, e.g. 0.1; got {value:g}")
    toy = study_toy(options.scale)
    if options.data is None and not options.checkpoint:
        toy.notes.append("Give --data, or --checkpoint with a run folder, for confusions and certificates.")
        return [toy]
    thresholds = Thresholds(options.query_distance, options.score_distance)
    with progress("injectivity", session) as tick:
        confusions = study_confusions(session.subjects, thresholds, options.queries, tick)
        return [toy, confusions, study_certificates(session.subjects)]


def run_locality(options: Locality, session: "Session") -> "list[Study]":
    from sightline.analysis.locality import study_locality

    size = odd("size", options.size)
    with progress("locality", session) as tick:
        return [study_locality(session.subjects, size, options.queries, tick)]


def run_masking(options: Masking, session: "Session") -> "list[Study]":
    from sightline.analysis.masking import study_masking

    sizes = [odd("sizes", size) for size in parse_numbers(options.sizes, "--sizes") or ()]
    subjects = session.labelled(options.limit, options.batch_size)
    batches = -(-len(session.names) // options.batch_size)
    with progress("masking, batches", session, len(subjects) * (1 + 2 * len(sizes)) * batches) as tick:
        return [study_masking(subjects, sizes, options.seed, tick)]


def run_newton(options: Newton, session: "Session") -> "list[Study]":
    from sightline.analysis.newton import study_newton

    with progress("newton", session) as tick:
        return [study_newton(session.subjects, options.iterations, tick)]


def run_rank(options: Rank, session: "Session") -> "list[Study]":
    from sightline.analysis.rank import study_rank

    with progress("rank", session) as tick:
        return [study_rank(session.subjects, options.rows, tick)]


def run_memory(options: Memory, session: "Session") -> "list[Study]":
    from sightline.analysis.memory import METHODS, study_memory
    from sightline.layers.spec import Spec

    methods = {name: str(Spec.parse(name)) for name in options.attention} or METHODS
    with Progress("lengths", len(methods) * options.longest) as steps:
        return [study_memory(range(1, options.longest + 1), methods, session.device, steps.step)]


def run_paper(options: Paper) -> None:
    """Make the sections one by one; write the page and the files of its studies."""
    from sightline.analysis.maps import parse_query
    from sightline.engine.paper import PAPERS, Material, Section, make_section, write_paper

    if options.which not in PAPERS:
        remedy = nearest(options.which, PAPERS, f"expected one of {', '.join(PAPERS)}")
        raise InputError(f"no paper {options.which!r}; {remedy}")
    if options.which == "soft" and not options.checkpoint and options.model is None:
        options = replace(options, model="soft_tiny")
    session, paper = start(options), PAPERS[options.which]
    queries = [parse_query(text) for text in options.query or ("0.5,0.5", "0.25,0.25")]
    session.load()
    if session.has_images:
        session.picture()  # raises if they cannot be used
    material = Material(session, queries, options.labelled, options.longest)
    sections = []
    with Progress("sections", len(paper.studies)) as steps:
        for title, study in paper.studies:
            steps.begin(title)
            sections.append(make_section(title, study, material))
            steps.done("made" if sections[-1].study else f"not made: {sections[-1].missing}")
    sections += [Section(title, missing=why) for title, why in paper.elsewhere]
    page = write_paper(Path(options.out), options.which, sections, session)
    for line in session.warnings:
        print(escaped(line))
    for section in sections:
        print(f"made     {section.title}" if section.study else f"missing  {section.title}: {escaped(section.missing)}")
    print(f"wrote {page} and the figures and numbers on it")


def run_instrument(name: str, run: "Callable[[T, Session], list[Study]]", options: T) -> None:
    """Run an instrument, write its files, print tables or JSON, and where the files are."""
    session = start(options)
    studies = run(options, session)
    from sightline.analysis.study import write_studies

    head = session.describe(name)
    written = write_studies(Path(options.out), head, studies)
    warnings = [escaped(line) for line in session.warnings]
    if options.json:
        print_json({**head, **{item.name: item.facts for item in studies}})
        for warning in warnings:
            print(f"sightline: {warning}", file=sys.stderr)
    else:
        for warning in warnings:
            print(warning)
        for item in studies:
            _print(item)
    print(f"wrote {', '.join(map(str, written))}", file=sys.stderr if options.json else sys.stdout)


def _print(study: "Study") -> None:
    print(f"\n{escaped(study.title)}")
    if study.rows:
        columns = [Column(title, right=i in study.numeric) for i, title in enumerate(study.columns)]
        show(columns, study.rows[:SHOWN])
    if len(study.rows) > SHOWN:
        print(f"and {len(study.rows) - SHOWN} more rows in {study.name}.json")
    for note in study.notes:
        print(note)


def _instrument(
    name: str, options: type[T], run: "Callable[[T, Session], list[Study]]", help: str, *examples: str
) -> Command[T]:
    """A row of the table; every example is what follows `sightline analyze NAME`."""
    return Command(options, partial(run_instrument, name, run), help, _examples(name, *examples))


def _examples(name: str, *examples: str) -> str:
    return "\n".join(f"  sightline analyze {name} {example}".rstrip() for example in examples)


COMMAND = Group(
    {
        "maps": _instrument(
            "maps", Maps, run_maps, "attention of chosen queries of an image",
            "photo.jpg --checkpoint runs/quick --query 2,5",
            "photo.jpg --attention softmax --attention linear --attention inline",
            "photo.jpg --checkpoint public.pth --view heads --layers 0,-1",
            "photo.jpg --checkpoint public.pth --query class --view rollout",
            "photo.jpg --checkpoint public.pth --animate queries --img-size 512",
        ),
        "injectivity": _instrument(
            "injectivity", Injectivity, run_injectivity, "whether attention separates queries",
            "",
            "--checkpoint runs/quick --limit 100",
            "--data photos --attention linear --attention inline",
            "--checkpoint runs/linear --checkpoint runs/inline",
        ),
        "locality": _instrument(
            "locality", Locality, run_locality, "attention inside the neighborhood of the query, by layer",
            "--checkpoint runs/quick",
            "--data photos --attention softmax --attention inline",
            "--model inline_deit_tiny --data embedded --size 5",
        ),
        "masking": _instrument(
            "masking", Masking, run_masking, "accuracy with local or random keys masked",
            "--checkpoint runs/quick --limit 500",
            "--checkpoint public.pth --data imagenet/val --sizes 3,5,7 --limit 5000",
        ),
        "newton": _instrument(
            "newton", Newton, run_newton, "convergence of SOFT's inverse",
            "--checkpoint soft.pth --data photos --limit 100",
            "--model soft_norm_tiny --data embedded",
        ),
        "rank": _instrument(
            "rank", Rank, run_rank, "effective rank of attention, by layer",
            "--checkpoint runs/quick",
            "--data photos --attention softmax --attention linear",
        ),
        "memory": _instrument(
            "memory", Memory, run_memory, "peak memory against sequence length",
            "",
            "--attention inline --attention softmax --longest 4",
        ),
        "paper": Command(
            Paper, run_paper, "all figures and tables of a paper that weights and images allow, on one page",
            _examples(
                "paper",
                "inline --checkpoint runs/quick --out inline",
                "inline --checkpoint runs/softmax --checkpoint runs/inline",
                "soft --checkpoint soft.pth --data photos --out soft",
            ),
        ),
    },
    noun="instrument",
    help="look inside attention: maps, injectivity, locality, rank and more",
    description=(
        "Look inside attention: on any model, mechanism and image size, with or without weights. Figures are written "
        "as PNG and SVG, the numbers behind them as JSON."
    ),
    examples=(
        "  sightline analyze maps photo.jpg --checkpoint runs/quick --query 0.3,0.6\n"
        "  sightline analyze injectivity --checkpoint runs/quick\n"
        "  sightline analyze paper inline --checkpoint runs/quick --out page\n"
        "`sightline analyze WHAT --help` describes each."
    ),
)  # fmt: skip
