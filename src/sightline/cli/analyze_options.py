"""Options that the instruments of `sightline analyze` share."""

from dataclasses import dataclass, fields
from pathlib import Path

from sightline.cli.options import UsageError, option

MODEL = "inline_deit_tiny"
LIMIT = 32  # images, unless told


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where results go."""

    out: str = option("folder for pictures and numbers; by default analysis", default="analysis", metavar="FOLDER")
    device: str = option("cpu or cuda; by default cuda where there is one", default="auto", metavar="NAME")
    json: bool = option("print the numbers as JSON", default=False)


@dataclass(frozen=True, kw_only=True)
class Models(Output):
    """Which models are looked at: every checkpoint, under every mechanism that is asked for."""

    checkpoint: tuple[str, ...] = option(
        "run folder or file of weights; may be repeated. Without one, weights are random", default=(), metavar="PATH"
    )
    model: str | None = option(f"the model; by default what the weights show, else {MODEL}", metavar="NAME")
    attention: tuple[str, ...] = option(
        "put this mechanism into the model, keeping the weights that fit; may be repeated to compare several",
        default=(), metavar="NAME",
    )  # fmt: skip
    model_args: tuple[str, ...] = option(
        "arguments of the model, as key=value or a JSON object; may be repeated", default=(), metavar="ARGS"
    )
    img_size: str | None = option("pixels, 224 or 384x640 (height x width); by default as trained", metavar="SIZE")
    seed: int = option("seed of random weights; by default 0", default=0, metavar="N")


@dataclass(frozen=True, kw_only=True)
class Pictures(Models):
    """Models and images."""

    data: str | None = option(
        "images: a file, folder, pattern in quotes, tar file, or embedded; by default those of the run", metavar="PATH"
    )
    limit: int = option(f"images to look at, evenly spread; by default {LIMIT}", default=LIMIT, metavar="N")


def check_output(options: Output) -> None:
    """Refuse a folder that cannot be one, and numbers that are not counts, before anything is computed."""
    path = Path(options.out)
    if not options.out.strip() or (path.exists() and not path.is_dir()):
        raise UsageError(f"--out: {options.out!r} is not a folder; give another name")
    for item in fields(options):
        value = getattr(options, item.name)
        if item.name in ("limit", "queries", "iterations", "rows", "batch_size", "longest") and value < 1:
            raise UsageError(f"--{item.name.replace('_', '-')}: {value} is too small; give at least 1")
