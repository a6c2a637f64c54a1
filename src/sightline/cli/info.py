"""`sightline info`: describe a model and its cost at a given size."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sightline.cli.options import Command, option, positional
from sightline.cli.output import Column, number, print_json, show
from sightline.util.names import format_size
from sightline.util.schema import Classes, ImgSize
from sightline.util.text import say

if TYPE_CHECKING:
    from sightline.bench.info import StageInfo

FIGURES = (Column("figure"), number("measured"), number("published"))
STAGES = (*map(number, ("stage", "grid", "tokens", "dim", "heads", "depth")), Column("attention"))


@dataclass(frozen=True)
class Options:
    """Describe a model: parameters, multiply-adds and activations at a size, its stages, its input.

    Nothing is downloaded and no memory is taken: the model is built without weights.
    """

    name: str = positional("model, one of `sightline list`")
    img_size: ImgSize | None = option(
        "pixels, 224 or 384x640 (height x width); by default as published", metavar="SIZE"
    )
    attention: str | None = option("other mechanisms, such as inline,inline,softmax,softmax", metavar="PATTERN")
    num_classes: Classes | None = option("classes; by default 1000, 0 for no classifier", metavar="N")
    json: bool = option("print JSON", default=False)


def run(options: Options) -> None:
    """Print the facts about a model."""
    from sightline.bench.info import describe_model

    info = describe_model(
        options.name, img_size=options.img_size, attention=options.attention, num_classes=options.num_classes
    )
    if options.json:
        print_json(asdict(info))
        return
    published = info.published
    say(f"{info.name} ({info.family}) at {format_size(info.img_size)}, {info.num_classes} classes")
    say(f"paper: {info.paper}", "")
    rows = [
        ["parameters", f"{info.params:,}", _number(published["params_m"], "M", 2)],
        ["FLOPs (multiply-adds)", f"{info.macs / 1e9:,.2f} G", _number(published["flops_g"], "G", 1)],
        ["activations", f"{info.activations / 1e6:,.2f} M", "-"],
        ["ImageNet-1K top-1", "-", _number(published["top1"], "%", 1)],
    ]
    show(FIGURES, rows)
    if published["params_m"] is not None:
        say("Published figures are for {img_size}x{img_size}.".format(**published))
    for note in info.notes:
        say(note)
    say()
    show(STAGES, [_stage_cells(i, stage) for i, stage in enumerate(info.stages, 1)])
    mean, std = (", ".join(f"{value:g}" for value in info.input[name]) for name in ("mean", "std"))
    size, crop = format_size(info.input["input_size"]), info.input["crop_pct"]
    say("", f"input: {size}, {info.input['interpolation']}, crop {crop:g}, mean {mean}, std {std}")


def _number(value: float | None, unit: str, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} {unit}"


def _stage_cells(i: int, stage: "StageInfo") -> list[str]:
    height, width = stage.grid
    numbers = (i, format_size(stage.grid), height * width, stage.dim, stage.heads, stage.depth)
    return [*map(str, numbers), stage.attention]


COMMAND = Command(
    Options,
    run,
    help="describe a model and its cost at a given size",
    examples=(
        "  sightline info inline_swin_tiny\n"
        "  sightline info inline_deit_tiny --img-size 384x640 --attention softmax\n"
        "  sightline info soft_tiny --json"
    ),
)
