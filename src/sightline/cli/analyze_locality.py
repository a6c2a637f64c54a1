"""`sightline analyze locality` and `masking`: how much attention is local, and what it is worth."""

from dataclasses import dataclass
from functools import partial

from sightline.cli.analyze_options import Pictures
from sightline.cli.options import Command, UsageError, option

SIZES = "3,5,7"


@dataclass(frozen=True, kw_only=True)
class LocalityOptions(Pictures):
    """Measure the share of attention inside the 3x3 neighbourhood of the query, by layer, beside the even level."""

    size: int = option("side of the neighbourhood in tokens; by default 3", default=3, metavar="N")
    queries: int = option("places of an image, evenly spread; by default 256", default=256, metavar="N")


def run_locality(options: LocalityOptions) -> None:
    from sightline.analysis.studies.locality import study_locality
    from sightline.cli.analyze_run import look

    odd(options.size, "size")
    look(
        "locality",
        options,
        lambda subjects, tick: [study_locality(subjects, options.size, options.queries, tick)],
    )


def odd(size: int, name: str) -> int:
    if size < 1 or size % 2 == 0:
        raise UsageError(f"--{name}: {size} has no middle; give odd sides such as 3")
    return size


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(Pictures):
    """Measure accuracy when every query loses its local 3x3, 5x5 or 7x7 keys, or as many random ones.

    Images need labels: a folder with a folder for every class, a tar file, a data set, or embedded.
    """

    limit: int = option("images to evaluate, evenly spread over classes; by default 500", default=500, metavar="N")
    sizes: str = option(f"sides of the neighbourhoods; by default {SIZES}", default=SIZES, metavar="NUMBERS")
    batch_size: int = option("images of a batch; by default 16", default=16, metavar="N")


def run_masking(options: MaskingOptions) -> None:
    """Top-1 with nothing masked and with each mask, of every model."""
    from sightline.analysis.studies.masking import Labelled, study_masking
    from sightline.cli.analyze_images import labelled_for, open_labelled, thinned
    from sightline.cli.analyze_maps import numbers
    from sightline.cli.analyze_models import load_models
    from sightline.cli.analyze_output import about, finish
    from sightline.cli.analyze_run import begin, failing, first, ticking
    from sightline.tasks.classification.data import DataError

    device = begin(options)
    sizes = [odd(size, "sizes") for size in numbers("sizes", options.sizes) or ()]
    try:
        split = open_labelled(options.data, first(options))
    except DataError as error:
        raise UsageError(f"--data: masking needs labels, a folder of images for every class; {error}") from error
    models = load_models(options, device, len(split.classes))
    split = thinned(split, options.limit)
    subjects = [
        Labelled(item.title, item.model, partial(labelled_for(item, split).batches, item, options.batch_size, device))
        for item in models
    ]
    total = len(models) * (1 + 2 * len(sizes)) * -(-len(split) // options.batch_size)
    with ticking("masking, batches", total) as tick, failing(models):
        study = study_masking(subjects, sizes, options.seed, tick)
    names = [split.name(i) for i in range(len(split))]
    finish(options.out, about("masking", device, models, names), [study], models, options.json)


LOCALITY = Command(
    LocalityOptions,
    run_locality,
    help="attention inside the neighbourhood of the query, by layer",
    examples=(
        "  sightline analyze locality --checkpoint runs/quick\n"
        "  sightline analyze locality --data photos --attention softmax --attention inline\n"
        "  sightline analyze locality --model inline_deit_tiny --data embedded --size 5"
    ),
)
MASKING = Command(
    MaskingOptions,
    run_masking,
    help="accuracy with local or random keys masked",
    examples=(
        "  sightline analyze masking --checkpoint runs/quick --limit 500\n"
        "  sightline analyze masking --checkpoint public.pth --data imagenet/val --sizes 3,5,7 --limit 5000"
    ),
)
