"""`sightline analyze maps`: what chosen places of an image attend to."""

from dataclasses import dataclass
from typing import Literal

from sightline.cli.analyze_options import Models
from sightline.cli.options import Command, UsageError, option, positional
from sightline.cli.query import find_query, parse_query


@dataclass(frozen=True, kw_only=True)
class Options(Models):
    """Draw the attention of chosen places of an image, for one mechanism or several side by side.

    A query is a patch of the finest map as row,column from 0,0 on; or a place as shares of the image down and across,
    from 0.0,0.0 to 1.0,1.0, the same at every resolution; or class, the class token. Weights are drawn as multiples of
    even attention with their sign. Rows of the attention matrix are computed one by one, O(N), never the matrix.
    """

    image: str = positional("an image file")
    query: tuple[str, ...] = option(
        "patch as 7,3, place as 0.5,0.25, or class; by default the middle; may be repeated", default=(), metavar="PLACE"
    )  # fmt: skip
    view: Literal["layers", "heads", "rollout"] = option(
        "layers: mean over heads in every layer (default); heads: each head; rollout: all layers in one map",
        default="layers", metavar="VIEW",
    )  # fmt: skip
    layers: str | None = option("layers, 0,5,11 or -1 for the last; by default all", metavar="NUMBERS")
    heads: str | None = option("heads, such as 0,1; by default all", metavar="NUMBERS")
    animate: Literal["layers", "queries", "none"] = option(
        "also a GIF, over the layers or over queries on their way through the image", default="none", metavar="WHAT"
    )


def run(options: Options) -> None:
    """Read the image, draw."""
    from sightline.analysis.studies.maps import Choice, study_maps
    from sightline.cli.analyze_images import open_gallery
    from sightline.cli.analyze_models import load_models
    from sightline.cli.analyze_output import about, finish
    from sightline.cli.analyze_run import begin, failing, subjects_of
    from sightline.engine.report.attention import shown

    device = begin(options)
    asked = [parse_query(text) for text in options.query or ("0.5,0.5",)]
    animate = None if options.animate == "none" else options.animate
    layers, heads = numbers("layers", options.layers), numbers("heads", options.heads)
    models = load_models(options, device)
    gallery = open_gallery(options.image, None, 1)
    subjects = subjects_of(models, gallery, device)
    first = subjects[0]
    queries = tuple(find_query(query, first.model, first.images[0]) for query in asked)
    choice = Choice(queries, options.view, layers, heads, animate)
    picture = shown(first.images[0], models[0].card)
    with failing(models):
        study = study_maps(subjects, picture, gallery.names[0], choice)
    finish(options.out, about("maps", device, models, gallery.names), [study], models, options.json)


def numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    """`0,5,-1` -> (0, 5, -1)."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--{name}: {text!r} is not a list of numbers; give 0,1,2") from error


COMMAND = Command(
    Options,
    run,
    help="attention of chosen places of an image",
    examples=(
        "  sightline analyze maps photo.jpg --checkpoint runs/quick --query 2,5\n"
        "  sightline analyze maps photo.jpg --attention softmax --attention linear --attention inline\n"
        "  sightline analyze maps photo.jpg --checkpoint public.pth --view heads --layers 0,-1\n"
        "  sightline analyze maps photo.jpg --checkpoint public.pth --query class --view rollout\n"
        "  sightline analyze maps photo.jpg --checkpoint public.pth --animate queries --img-size 512"
    ),
)
