"""`sightline analyze`: instruments that look inside attention, each a class of options; the table is at the end."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field

from sightline.cli.options import Command, Group, model_arguments, option, positional
from sightline.cli.output import Column, Progress, bar, print_json, show
from sightline.util.errors import InputError
from sightline.util.files import check_writable
from sightline.util.schema import Amount, Count, Listed, ModelArgs, Number, Seed, Size
from sightline.util.text import say

if TYPE_CHECKING:
    from sightline.analysis.study import Study
    from sightline.engine.analyze import Session

N = TypeVar("N", int, float)
MODEL = "inline_deit_tiny"
SHOWN = 40  # rows of a table on the screen; the rest is in the JSON file


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise ValueError(f"expected an odd side, e.g. 3; got {size}")
    return size


Side = Annotated[Count, AfterValidator(_odd)]
Distance = Annotated[Amount, Field(lt=2)]  # over a length


def number(help: str, default: N, metavar: str = "N") -> N:
    """Declare an option of a number, whose default the help names."""
    return option(f"{help}; by default {default}", default=default, metavar=metavar)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where results go."""

    out: str = option("folder for figures and numbers; by default analysis", default="analysis", metavar="FOLDER")
    device: str = option("cpu or cuda; by default cuda if available", default="auto", metavar="NAME")
    json: bool = option("print the numbers as JSON", default=False)

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        """Open models and images; returns what makes the studies."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Models(Output):
    """Which models to study: every checkpoint with every mechanism."""

    checkpoint: tuple[str, ...] = option(
        "run folder or file of weights; can be repeated. Without one, and without --model, --model-args and "
        "--attention, the model in the package; otherwise weights are random",
        default=(),
        metavar="PATH",
    )
    model: str | None = option(f"the model; by default the one in the weights, else {MODEL}", metavar="NAME")
    attention: tuple[str, ...] = option(
        "put this mechanism into the model, keeping the weights that fit; can be repeated to compare several",
        default=(), metavar="NAME",
    )  # fmt: skip
    model_args: ModelArgs = model_arguments()
    img_size: Size | None = option("pixels, 224 or 384x640 (height x width); by default as trained", metavar="SIZE")
    seed: Seed = number("seed of random weights", 0)


@dataclass(frozen=True, kw_only=True)
class Images(Models):
    """Models and images."""

    data: str | None = option(
        "images: a file, folder, pattern in quotes, tar file, or embedded; by default those of the run", metavar="PATH"
    )
    limit: Count = number("number of images, evenly spread", 32)


@dataclass(frozen=True, kw_only=True)
class Maps(Models):
    """Draw the attention of chosen queries of an image, for one mechanism or several side by side.

    A query is a patch of the finest map as row,column from 0,0 on; or fractions of the height and width of the image,
    from 0.0,0.0 to 1.0,1.0, the same at every resolution; or class, the class token. Weights are drawn as multiples of
    uniform attention with their sign. Rows of the attention matrix are computed one by one, O(N), never the matrix.
    """

    image: str = positional("an image file")
    query: tuple[str, ...] = option(
        "patch as 7,3, fractions as 0.5,0.25, or class; by default the center; can be repeated",
        default=(), metavar="QUERY",
    )  # fmt: skip
    view: Literal["layers", "heads", "rollout"] = option(
        "layers: mean over heads in every layer (default); heads: each head; rollout: all layers in one map",
        default="layers", metavar="VIEW",
    )  # fmt: skip
    layers: Listed[int] | None = option("layers, 0,5,11 or -1 for the last; by default all", metavar="NUMBERS")
    heads: Listed[int] | None = option("heads, such as 0,1; by default all", metavar="NUMBERS")
    animate: Literal["layers", "queries", "none"] = option(
        "also write a GIF, over the layers or over queries across the image", default="none", metavar="WHAT"
    )

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        from sightline.analysis.map_study import study_maps
        from sightline.analysis.maps import parse_query

        session.data, session.limit = self.image, 1
        queries = [parse_query(text) for text in self.query or (None,)]
        drawn = (session.subjects, session.picture(), self.image)
        return [partial(study_maps, *drawn, queries, self.view, self.layers, self.heads, self.animate, hover=True)]


@dataclass(frozen=True, kw_only=True)
class Injectivity(Images):
    """Measure whether attention separates queries: the InLine paper's toy, confusions, and a certificate by layer.

    A confusion is a pair of clearly different queries with nearly the same scores; the thresholds are options and are
    printed. The certificate of a layer is the rank and smallest singular value of [phi(K), 1], and for linear attention
    two different queries with equal scores. Without images only the toy is made.
    """

    query_distance: Distance = number("queries are different beyond this fraction of the longer one's length", 0.5, "X")
    score_distance: Distance = number("scores are equal up to this fraction of the longer row's length", 0.01, "X")
    queries: Count = number("queries per image that are paired", 128)
    scale: Number = number("of the toy's scores", 0.68, "X")

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        from sightline.analysis.certificate import study_certificates
        from sightline.analysis.confusions import Thresholds, study_confusions
        from sightline.analysis.toy import study_toy

        toy = study_toy(self.scale)
        if self.data is None and not self.checkpoint:
            toy.notes.append("Give --data, or --checkpoint with a run folder, for confusions and certificates.")
            return [lambda: toy]
        subjects, thresholds = session.subjects, Thresholds(self.query_distance, self.score_distance)
        confusions = partial(study_confusions, subjects, thresholds, self.queries)
        return [lambda: toy, confusions, partial(study_certificates, subjects)]


@dataclass(frozen=True, kw_only=True)
class Locality(Images):
    """Measure the fraction of attention inside the 3x3 neighborhood of the query, by layer, next to uniform."""

    size: Side = number("side of the neighborhood in tokens", 3)
    queries: Count = number("queries per image, evenly spread", 256)

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        from sightline.analysis.locality import study_locality

        return [partial(study_locality, session.subjects, self.size, self.queries)]


@dataclass(frozen=True, kw_only=True)
class Masking(Images):
    """Measure accuracy when every query loses its local 3x3, 5x5 or 7x7 keys, or as many random ones.

    Images need labels: a folder with one folder per class, a tar file, a dataset, or embedded.
    """

    limit: Count = number("images to evaluate, evenly spread over classes", 500)
    sizes: Listed[Side] = option("sides of the neighborhoods; by default 3,5,7", default=(3, 5, 7), metavar="NUMBERS")
    batch_size: Count = number("images per batch", 16)

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        from sightline.analysis.masking import study_masking

        session.passes = 1 + 2 * len(self.sizes)
        return [partial(study_masking, session.labelled(self.limit, self.batch_size), self.sizes, self.seed)]


@dataclass(frozen=True, kw_only=True)
class Newton(Images):
    """Measure how fast SOFT's Newton iteration converges: ||A A_k A - A|| / ||A|| against k, and condition numbers."""

    iterations: Annotated[Count, Field(le=10_000)] = number("steps", 20, "K")

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        from sightline.analysis.newton import study_newton

        return [partial(study_newton, session.subjects, self.iterations)]


@dataclass(frozen=True, kw_only=True)
class Rank(Images):
    """Measure the effective rank of attention by layer: the exponential of the entropy of its singular values.

    Mechanisms with thin factors need no N x N matrix; softmax is measured through at most --rows rows per
    window.
    """

    rows: Count = number("rows per window if there are no factors", 1024)

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        from sightline.analysis.rank import study_rank

        return [partial(study_rank, session.subjects, self.rows)]


@dataclass(frozen=True, kw_only=True)
class Memory(Output):
    """Measure peak memory against sequence length: 12 blocks, width 384, 12 heads, 49 landmarks, batch 1, 784 p tokens.

    On CUDA it is the allocator's peak, on a CPU the bytes of live tensors, counted without computing.
    """

    longest: Annotated[Count, Field(le=1024)] = number("largest p", 8, "P")
    attention: tuple[str, ...] = option(
        "mechanism, such as inline or soft(landmarks=49); can be repeated; by default the five of SOFT's Fig. 1b",
        default=(), metavar="NAME",
    )  # fmt: skip

    def studies(self, session: "Session") -> "list[Callable[[], Study]]":
        from sightline.analysis.memory import METHODS, study_memory
        from sightline.layers.spec import Spec

        methods = {name: str(Spec.parse(name)) for name in self.attention} or METHODS

        def measure() -> "Study":
            with Progress("lengths", len(methods) * self.longest) as steps:
                return study_memory(range(1, self.longest + 1), methods, session.device, steps.step)

        return [measure]


@dataclass(frozen=True, kw_only=True)
class Paper(Images):
    """Make every figure and table of a paper that the given weights and images allow, on one HTML page.

    The page needs no other file and no network. What could not be made is listed with the reason and the remedy.
    """

    which: Literal["inline", "soft"] = positional("inline or soft")
    labelled: Count = number("images of the masking table", 200)
    query: tuple[str, ...] = option(
        "query of the maps; by default 0.5,0.5 and 0.25,0.25; can be repeated", default=(), metavar="QUERY"
    )
    longest: Annotated[Count, Field(le=1024)] = option(
        "memory up to 784 p tokens; by default p = 8", default=8, metavar="P"
    )


def start(options: Output) -> "Session":
    """Check the options before anything is computed, and choose models, images and device; nothing is loaded yet."""
    import torch

    from sightline.analysis.figures import new_figure
    from sightline.engine.analyze import Session
    from sightline.util.device import choose_device

    if not options.out.strip() or (Path(options.out).exists() and not Path(options.out).is_dir()):
        raise InputError(f"--out: expected a folder, got {options.out!r}, which is not one")
    out = Path(options.out).absolute()
    check_writable(next(folder for folder in (out, *out.parents) if folder.exists()), "--out")
    new_figure(1, 1)  # raises if matplotlib is missing
    if options.device == "auto":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        device = choose_device(options.device, "--device")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device: expected cpu or cuda, got {options.device!r}, which has no float64")
    if not isinstance(options, Models):
        return Session(device)
    session = Session(
        device, options.checkpoint, options.attention, options.model, options.model_args, options.img_size, options.seed
    )
    if isinstance(options, Images):
        session.data, session.limit = options.data, options.limit
    return session


def run_instrument(name: str, options: Output) -> None:
    """Run an instrument, write its files, print tables or JSON, and where the files are."""
    session = start(options)
    from sightline.analysis.study import write_studies
    from sightline.engine.paper import write_page

    makers = options.studies(session)
    try:
        with bar(session.total, name) if session.total else nullcontext(session.advance) as session.advance:
            studies = [make() for make in makers]
    except (RuntimeError, AssertionError) as error:
        if not session.models:
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"a model failed on images of {session.sizes}: {reason}; give another --img-size") from error
    head = session.describe(name)
    written = write_studies(Path(options.out), head, studies)
    if any(study.hovers for study in studies):  # maps to point at
        written.append(Path(options.out) / f"{name}.html")
        write_page(written[-1], studies, head, session.warnings)
    texts = sys.stderr if options.json else sys.stdout
    for line in session.warnings:
        say(f"{'sightline: ' if options.json else ''}{line}", file=texts)
    if options.json:
        print_json({**head, **{item.name: item.facts for item in studies}})
    else:
        for item in studies:
            _print(item)
    say(f"wrote {', '.join(map(str, written))}", file=texts)


def _print(study: "Study") -> None:
    say("", f"{study.title}")
    if study.rows:
        columns = [Column(title, right=i in study.numeric) for i, title in enumerate(study.columns)]
        show(columns, study.rows[:SHOWN])
    if len(study.rows) > SHOWN:
        say(f"and {len(study.rows) - SHOWN} more rows in {study.name}.json")
    for note in study.notes:
        say(note)


def run_paper(options: Paper) -> None:
    """Make the sections one by one; write the page and the files of its studies."""
    from sightline.analysis.maps import parse_query
    from sightline.engine.paper import make_section, sections, write_paper

    if options.which == "soft" and not options.checkpoint and options.model is None:
        options = replace(options, model="soft_tiny")
    session = start(options)
    queries = [parse_query(text) for text in options.query or ("0.5,0.5", "0.25,0.25")]
    session.load()
    if session.has_images:
        session.picture()  # raises if they cannot be used
    paper = sections(options.which, session, queries, options.labelled, options.longest)
    made: dict[str, Study | str] = {}
    with Progress("sections", len(paper)) as steps:
        for title, section in paper.items():
            steps.begin(title)
            made[title] = found = make_section(section)
            steps.done(f"not made: {found}" if isinstance(found, str) else "made")
    page = write_paper(Path(options.out), options.which, made, session)
    if options.json:
        missing = {title: found for title, found in made.items() if isinstance(found, str)}
        facts = {"page": str(page), "made": [title for title in made if title not in missing], "missing": missing}
        print_json(session.describe("paper") | facts)
        return
    for line in session.warnings:
        say(line)
    for title, found in made.items():
        say(f"missing  {title}: {found}" if isinstance(found, str) else f"made     {title}")
    say(f"wrote {page} and the figures and numbers on it")


INSTRUMENTS: dict[str, tuple[type[Output], str, tuple[str, ...]]] = {
    "maps": (Maps, "attention of chosen queries of an image", (
        "photo.jpg --checkpoint runs/quick --query 2,5",
        "photo.jpg --attention softmax --attention linear --attention inline",
        "photo.jpg --checkpoint public.pth --view heads --layers 0,-1",
        "photo.jpg --checkpoint public.pth --query class --view rollout",
        "photo.jpg --checkpoint public.pth --animate queries --img-size 512",
    )),
    "injectivity": (Injectivity, "whether attention separates queries", (
        "",
        "--checkpoint runs/quick --limit 100",
        "--data photos --attention linear --attention inline",
        "--checkpoint runs/linear --checkpoint runs/inline",
    )),
    "locality": (Locality, "attention inside the neighborhood of the query, by layer", (
        "--checkpoint runs/quick",
        "--data photos --attention softmax --attention inline",
        "--model inline_deit_tiny --data embedded --size 5",
    )),
    "masking": (Masking, "accuracy with local or random keys masked", (
        "--checkpoint runs/quick --limit 500",
        "--checkpoint public.pth --data imagenet/val --sizes 3,5,7 --limit 5000",
    )),
    "newton": (Newton, "convergence of SOFT's inverse", (
        "--checkpoint soft.pth --data photos --limit 100",
        "--model soft_norm_tiny --data embedded",
    )),
    "rank": (Rank, "effective rank of attention, by layer", (
        "--checkpoint runs/quick",
        "--data photos --attention softmax --attention linear",
    )),
    "memory": (Memory, "peak memory against sequence length", (
        "",
        "--attention inline --attention softmax --longest 4",
    )),
    "paper": (Paper, "all figures and tables of a paper that weights and images allow, on one page", (
        "inline --checkpoint runs/quick --out inline",
        "inline --checkpoint runs/softmax --checkpoint runs/inline",
        "soft --checkpoint soft.pth --data photos --out soft",
    )),
}  # by name: options, help, and examples of what follows the name  # fmt: skip


COMMAND = Group(
    {
        name: Command(
            options, run_paper if options is Paper else partial(run_instrument, name), help,
            "\n".join(f"  sightline analyze {name} {example}".rstrip() for example in examples),
        )
        for name, (options, help, examples) in INSTRUMENTS.items()
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
