"""`sightline convert`: convert a checkpoint, published or our own, to safetensors in sightline's layout."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.cli.options import Command, option, positional
from sightline.util.names import parse_classes, parse_img_size, parse_model_args

if TYPE_CHECKING:
    from sightline.hub import Conversion
    from sightline.models.weights.fit import MismatchError


@dataclass(frozen=True)
class Options:
    """Convert a checkpoint, published or our own, to safetensors in sightline's layout.

    The family and the variant are found from the names and shapes of the tensors. Position and bias tables are
    resampled if the size differs. The file is read as data only: a pickle that would run code is rejected.
    """

    source: str = positional("checkpoint to read: .pth, .pt or .safetensors")
    out: str = positional("file to write, ending in .safetensors")
    model: str | None = option("fit the weights to this model instead of the one that is found", metavar="NAME")
    model_args: tuple[str, ...] = option(
        "arguments of the model, as key=value or a JSON object; can be repeated", default=(), metavar="ARGS"
    )
    img_size: str | None = option("pixels to fit the position tables to, 224 or 384x640", metavar="SIZE")
    num_classes: int | None = option("classes; if the weights have another number, the classifier starts from scratch",
                                     metavar="N")  # fmt: skip
    force: bool = option("replace OUT if it exists", default=False)


def run(options: Options) -> None:
    """Convert and print what was done, the file last."""
    from sightline.hub import convert
    from sightline.models.weights.fit import MismatchError

    args = parse_model_args(options.model_args)
    if options.img_size is not None:
        args["img_size"] = parse_img_size(options.img_size)
    if options.num_classes is not None:
        args["num_classes"] = parse_classes(options.num_classes)
    try:
        done = convert(options.source, options.out, model=options.model, model_args=args, force=options.force)
    except MismatchError as error:
        _print_mismatch(error)
        raise
    _print_model(done)
    _print_keys(done)
    identity = done.choice.identity
    arguments = "".join(f", {key}={value!r}" for key, value in identity.kwargs.items())
    _print("use it as", f"timm.create_model({identity.name!r}{arguments}, checkpoint_path={str(done.target)!r})")
    _print("wrote", f"{done.target} ({done.target.stat().st_size / 1e6:.1f} MB)")


def _print(what: str, text: str) -> None:
    print(f"{what:<12} {text}", flush=True)


def _print_model(done: "Conversion") -> None:
    """The model, and what had to be guessed about it."""
    layout = "sightline" if done.file.native else "public"
    _print("read", f"{done.file.weights.path}: {len(done.file.weights.state)} tensors, {layout} layout")
    _print("family", done.file.family)
    _print("model", str(done.choice.identity))
    for guess in done.guesses:
        _print("note", guess)


def _print_keys(done: "Conversion") -> None:
    """Every key that changed on the way."""
    count = len(done.file.weights.state)
    _print("renamed", f"{len(done.renamed)} of {count} keys to sightline's names" if done.renamed else "no keys")
    for key, (before, after) in done.resampled.items():
        _print("resampled", f"{key} from {_shape(before)} to {_shape(after)}")
    _print("dropped", ", ".join(done.dropped) or "nothing")
    _print("missing", ", ".join(done.missing) or "nothing")
    _print("unexpected", ", ".join(done.unexpected) or "nothing")
    _print("wrong shape", "nothing")  # `convert` raises otherwise
    if "head.weight" in done.missing:
        _print("note", "the classifier is new and random: train it")
    _print("tensors", f"{done.tensors}, {done.parameters:,} parameters")


def _print_mismatch(error: "MismatchError") -> None:
    """Every key that does not fit, with its name in the file."""
    for what, keys in error.mismatch.rows():
        for key in keys:
            origin = error.origins.get(key.split(" ")[0], key)
            _print(what.removeprefix("of the "), key if origin in key else f"{key} ({origin} in the file)")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


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
