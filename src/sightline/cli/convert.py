"""`sightline convert`: convert a checkpoint, published or our own, to safetensors in sightline's layout."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.cli.options import Command, model_arguments, option, positional
from sightline.util.names import format_size
from sightline.util.schema import Classes, ImgSize, ModelArgs
from sightline.util.text import as_options, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sightline.hub import Conversion
    from sightline.models.weights.fit import MismatchError


MAX_KEYS = 1000  # of each kind that are listed


@dataclass(frozen=True)
class Options:
    """Convert a checkpoint, published or our own, to safetensors in sightline's layout.

    The family and the variant are found from the names and shapes of the tensors. Position and bias tables are
    resampled if the size differs. The file is read as data only: a pickle that would run code is rejected.
    """

    source: str = positional("checkpoint to read: .pth, .pt or .safetensors")
    out: str = positional("file to write, ending in .safetensors")
    model: str | None = option("fit the weights to this model instead of the one that is found", metavar="NAME")
    model_args: ModelArgs = model_arguments()
    img_size: ImgSize | None = option("pixels to fit the position tables to, 224 or 384x640", metavar="SIZE")
    num_classes: Classes | None = option(
        "classes; if the weights have another number, the classifier starts from scratch", metavar="N"
    )
    force: bool = option("replace OUT if it exists", default=False)


def run(options: Options) -> None:
    """Convert and print what was done, the file last."""
    from sightline.hub import convert
    from sightline.models.weights.fit import MismatchError

    given = {"img_size": options.img_size, "num_classes": options.num_classes}
    args = options.model_args | {key: value for key, value in given.items() if value is not None}
    try:
        done = convert(options.source, options.out, model=options.model, model_args=args, force=options.force)
    except MismatchError as error:
        _print_mismatch(error)
        raise
    for what, text in _lines(done):
        _print(what, text)


def _print(what: str, text: str) -> None:
    say(f"{what:<12} {as_options(text)}")


def _lines(done: "Conversion") -> "Iterator[tuple[str, str]]":
    """The model, what had to be guessed about it, every key that changed on the way, and how to use the file."""
    state, identity = done.file.weights.state, done.choice.identity
    yield (
        "read",
        f"{done.file.weights.path}: {len(state)} tensors, {'sightline' if done.file.native else 'public'} layout",
    )
    yield "family", done.file.family
    yield "model", str(identity)
    for guess in done.guesses:
        yield "note", guess
    yield "renamed", f"{len(done.renamed)} of {len(state)} keys to sightline's names" if done.renamed else "no keys"
    for key, (before, after) in done.resampled.items():
        yield "resampled", f"{key} from {format_size(before)} to {format_size(after)}"
    for what in ("dropped", "missing", "unexpected"):
        yield what, ", ".join(getattr(done, what)) or "nothing"
    if "head.weight" in done.missing:
        yield "note", "the classifier is new and random: train it"
    yield "tensors", f"{done.tensors}, {done.parameters:,} parameters"
    arguments = "".join(f", {key}={value!r}" for key, value in identity.kwargs.items())
    yield "use it as", f"timm.create_model({identity.name!r}{arguments}, checkpoint_path={str(done.target)!r})"
    yield "wrote", f"{done.target} ({done.target.stat().st_size / 1e6:.1f} MB)"


def _print_mismatch(error: "MismatchError") -> None:
    """Every key that does not fit, with its name in the file."""
    for what, keys in error.mismatch.rows():
        for key in keys[:MAX_KEYS]:
            origin = error.origins.get(key.split(" ")[0], key)
            _print(what.removeprefix("of the "), key if origin in key else f"{key} ({origin} in the file)")
        if len(keys) > MAX_KEYS:
            _print(what.removeprefix("of the "), f"and {len(keys) - MAX_KEYS:,} more")


COMMAND = Command(
    Options,
    run,
    help="convert a checkpoint to safetensors in sightline's layout",
    examples=(
        "  sightline convert public.pth inline_swin_tiny.safetensors\n"
        "  sightline convert public.pth out.safetensors --img-size 384x640 --num-classes 10\n"
        "  sightline convert public.pth out.safetensors --model soft_small --model-args depths=1,3,20,4"
    ),
)
