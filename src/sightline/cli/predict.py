"""`sightline predict`: classify, segment or detect in images, and draw attention maps."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from sightline.cli.options import Command, model_arguments, option, positional
from sightline.cli.output import Column, number, print_json, show
from sightline.util.errors import InputError
from sightline.util.files import write_result
from sightline.util.schema import MOST_CLASSES, Count, ModelArgs, Share, Size
from sightline.util.text import say

Fact = dict[str, Any]  # JSON
COLUMNS = (number("rank"), number("index"), number("probability"), Column("class"))
OF_CLASSIFIERS = ("attention", "query", "top", "img_size")
NOT_FOR = {
    "classification": ("out", "score"), "segmentation": (*OF_CLASSIFIERS, "score"), "detection": OF_CLASSIFIERS,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Classify images and print the likeliest classes of each; with weights of a segmenter or detector, print what was
    found and draw it over the images.

    An image may be a file, a folder (with the folders in it) or a pattern in quotes, such as 'photos/*.jpg'. EXIF
    orientation is applied; any color space, bit depth and size is accepted.
    """

    image: tuple[str, ...] = positional("images, folders or patterns")
    checkpoint: str | None = option(
        "run folder, or file of weights, public ones as published; by default the model in the package", metavar="PATH"
    )
    top: Annotated[Count, Field(le=MOST_CLASSES)] = option("classes to print; by default 5", default=5, metavar="K")
    attention: str | None = option(
        "draw attention maps: a PNG file, or a folder for several images; needs matplotlib", metavar="PATH"
    )
    query: str | None = option(
        "whose attention to draw: a patch as row,column, a point as fractions of height and width (0.3,0.6), or class; "
        "by default the center",
        metavar="POINT",
    )
    img_size: Size | None = option("pixels, 224 or 384x640 (height x width); by default as trained", metavar="SIZE")
    model: str | None = option(
        "the model, if the weights do not show it; without --checkpoint, its published weights are used", metavar="NAME"
    )
    model_args: ModelArgs = model_arguments()
    device: str = option("cpu, cuda, mps; by default the GPU if there is one", default="auto", metavar="NAME")
    on_error: Literal["stop", "skip"] = option(
        "unreadable images: stop (default) or skip", default="stop", metavar="WHAT"
    )
    out: str = option(
        "segmentation and detection: a PNG file, or a folder, for the pictures; by default predictions",
        default="predictions", metavar="PATH",
    )  # fmt: skip
    score: Share = option("detection: lowest score to draw; by default 0.5", default=0.5, metavar="SCORE")
    json: bool = option("print JSON", default=False)


def run(options: Options) -> None:
    """Predict image by image, and print each result at once."""
    from sightline.analysis.maps import parse_query
    from sightline.data.images import find_images
    from sightline.engine.pictures import check_attention, draw_attention, picture_files
    from sightline.engine.predict import predict
    from sightline.hub import load
    from sightline.tasks.classification.predict import Classified

    paths = find_images(options.image)
    query = parse_query(options.query)
    loaded = load(options.checkpoint, model=options.model, model_args=options.model_args)
    _check_options(options, loaded.task)
    classifies = loaded.task == "classification"
    target, name = (options.attention, "--attention") if classifies else (options.out, "--out")
    pictures = picture_files(target, paths, name)
    if options.attention is not None:
        check_attention(loaded, query)
    facts = []
    results = predict(
        loaded, paths, options.top, img_size=options.img_size, score=options.score, device=options.device,
        on_error=options.on_error,
    )  # fmt: skip
    for path, result in zip(paths, results, strict=True):
        fact: Fact = {"file": str(path)}
        if result.error is not None:
            fact["error"] = result.error
        elif classifies:
            fact["predictions"] = result.found
            if path in pictures:
                fact["attention"] = str(pictures[path])
                assert isinstance(result, Classified)
                assert result.pixels is not None
                title = f"{path.name}: {result.found[0]['class']}"
                draw_attention(loaded, result.pixels, query, title, pictures[path])
        else:
            fact |= {"found": result.found, "picture": str(pictures[path])}
            picture = result.draw()
            assert picture is not None
            write_result(pictures[path], picture.save)
        facts.append(fact)
        if not options.json:
            _print(fact)
    if options.json:
        print_json(facts)
    elif options.attention is not None and pictures:
        say(f"wrote {options.attention}")


def _check_options(options: Options, task: str) -> None:
    """Reject options that the task of the weights does not have."""
    given = [name for name in NOT_FOR.get(task, ()) if getattr(options, name) != getattr(Options, name)]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{names}: the weights are of {task}, which has no such option; leave it out")


def _print(fact: Fact) -> None:
    say(fact["file"])
    if "error" in fact:
        say(f"  {fact['error']}")
    for row in fact.get("found", ()):
        if "share" in row:
            say(f"  {100 * row['share']:5.1f} %  {row['class']}")
        else:
            say(f"  {row['score']:.2f}  {row['class']}  {', '.join(f'{v:.0f}' for v in row['box'])}")
    if "picture" in fact:
        say(f"  wrote {fact['picture']}")
    if "predictions" in fact:
        cells = [(f"{row['index']}", f"{row['probability']:.4f}", row["class"]) for row in fact["predictions"]]
        show(COLUMNS, [[str(rank), *row] for rank, row in enumerate(cells, 1)])
        say()


COMMAND = Command(
    Options,
    run,
    help="classify, segment or detect in images, and draw attention maps",
    examples=(
        "  sightline predict photo.jpg\n"
        "  sightline predict photo.jpg --checkpoint runs/quick\n"
        "  sightline predict 'photos/*.jpg' --checkpoint public.pth --top 3 --json\n"
        "  sightline predict photos --checkpoint public.pth --attention maps --query 0.3,0.6"
    ),
)
