"""`sightline convert`: a checkpoint of any origin into sightline's layout, as safetensors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.cli.models import known, parse_classes, parse_model_args, parse_size
from sightline.cli.options import Command, UsageError, option, positional
from sightline.cli.weights import Checkpoint, choose, load, naming

if TYPE_CHECKING:
    from sightline.models.base import VisionModel
    from sightline.models.weights.fit import MismatchError
    from sightline.models.weights.identify import Identity


@dataclass(frozen=True)
class Options:
    """Convert a checkpoint, public or sightline's own, to safetensors in sightline's layout.

    The family and the variant are found from the names and shapes of the tensors. Position and bias tables
    are interpolated where the size differs. The file is only read as data: a pickle that would run code is
    refused.
    """

    source: str = positional("checkpoint to read: .pth, .pt or .safetensors")
    out: str = positional("file to write, ending in .safetensors")
    model: str | None = option("fit the weights to this model instead of the one that is found", metavar="NAME")
    model_args: tuple[str, ...] = option(
        "arguments of the model, as key=value or a JSON object; may be repeated", default=(), metavar="ARGS"
    )
    img_size: str | None = option("pixels to fit the position tables to, 224 or 384x640", metavar="SIZE")
    num_classes: int | None = option("classes; another number than the weights have starts a new classifier",
                                     metavar="N")  # fmt: skip
    force: bool = option("replace OUT if it exists", default=False)


def run(options: Options) -> None:
    """Read, identify, fit, write; print what was done, the file last."""
    from sightline.models.weights.fit import MismatchError

    out = _check_out(Path(options.out), options.force)
    name = None if options.model is None else known(options.model)
    args = parse_model_args(options.model_args)
    if options.img_size is not None:
        args["img_size"] = parse_size(options.img_size)
    if options.num_classes is not None:
        args["num_classes"] = parse_classes(options.num_classes)
    file = Checkpoint.read(options.source)
    _say("read", f"{file.path}: {len(file.state)} tensors, {'sightline' if file.native else 'public'} layout")
    _say("family", file.family)
    try:
        with naming(file.path):
            identity, *alike = choose(file, name, args)
            _say_model(identity, alike)
            if "num_heads" not in args:
                _say_heads(file, identity)
            if "attention" not in args:
                _say_attention(file, identity)
            model = load(file, identity)
    except MismatchError as error:
        raise _explain(error, file, name) from error
    _say_changes(file, model)
    write(model, out, identity)
    arguments = "".join(f", {key}={value!r}" for key, value in identity.kwargs.items())
    _say("use it as", f"timm.create_model({identity.name!r}{arguments}, checkpoint_path={str(out)!r})")
    _say("wrote", f"{out} ({out.stat().st_size / 1e6:.1f} MB)")


def _check_out(out: Path, force: bool) -> Path:
    if out.suffix != ".safetensors":
        raise UsageError(f"{out}: only safetensors are written; name the file {out.stem or 'out'}.safetensors")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}; make it first")
    if out.is_dir():
        raise UsageError(f"{out}: this is a folder; give the name of a file")
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; choose another name, or pass --force to replace it")
    return out


def write(model: "VisionModel", out: Path, identity: "Identity") -> None:
    """Save under a temporary name beside `out`, then rename: a file under its own name is always whole."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from sightline import __version__
    from sightline.util.files import write_atomic

    metadata = {
        "format": "pt",
        "sightline": __version__,
        "model": identity.name,
        "model_args": json.dumps(identity.kwargs),
    }
    state = {k: v.contiguous() for k, v in model.state_dict().items()}
    try:
        write_atomic(out, lambda temporary: save_file(state, temporary, metadata))
    except SafetensorError as error:
        raise UsageError(f"{out}: cannot be written ({error}); is there room on the disk?") from error


def _say(what: str, text: str) -> None:
    print(f"{what:<12} {text}", flush=True)


def _say_model(identity: "Identity", alike: "list[Identity]") -> None:
    _say("model", str(identity))
    if alike:
        flags = " or ".join(_flags(other) for other in alike)
        _say(
            "note",
            f"another model has the same shapes and cannot be told from it; for that one pass {flags}",
        )


def _say_heads(file: Checkpoint, identity: "Identity") -> None:
    """Say where the heads are a guess: not in a published model, nor in a file that names its own."""
    from sightline.models.weights.identify import arguments
    from sightline.models.weights.shapes import observe
    from sightline.models.zoo import VARIANTS

    if identity.exact or "model" in file.metadata:
        return
    if None in observe(file.shapes, VARIANTS[identity.name].cls).num_heads:
        heads = {**arguments(identity.name), **identity.kwargs}["num_heads"]
        taken = ", ".join(map(str, heads if isinstance(heads, tuple | list) else [heads]))
        _say("note", f"softmax does not show its heads; taken as {taken}; if not, pass --model-args num_heads=")


def _say_attention(file: Checkpoint, identity: "Identity") -> None:
    """Say where the mechanism is a guess: mechanisms without weights of their own all look like softmax."""
    if identity.exact or "model" in file.metadata or "attention" not in identity.kwargs:
        return
    taken = identity.kwargs["attention"]
    _say(
        "note",
        f"mechanisms without tensors of their own (linear, hydra, ...) have the shapes of softmax, and options do not "
        f"show; taken as {taken}; if not, pass --model-args attention=",
    )


def _say_changes(file: Checkpoint, model: "VisionModel") -> None:
    """Which keys changed on the way, all of them by name."""
    from sightline.models.weights.layouts import IGNORED

    own = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    dropped = [key for key in file.state if not file.native and IGNORED.search(key)]
    renamed = [key for key in file.state if key not in own and key not in dropped and not key.startswith("head.")]
    changed = {k: tuple(v.shape) for k, v in file.shapes.items() if k in own and tuple(v.shape) != own[k]}
    head = [key for key in file.shapes if key.startswith("head.") and own.get(key) != tuple(file.shapes[key].shape)]
    _say("renamed", f"{len(renamed)} of {len(file.state)} keys to sightline's names" if renamed else "no keys")
    for key, shape in changed.items():
        if key not in head:
            _say("resampled", f"{key} from {_times(shape)} to {_times(own[key])}")
    _say("dropped", ", ".join(dropped + head) or "nothing")
    if head and model.num_classes:
        _say("note", f"the classifier for {model.num_classes} classes is new and random: train it")
    for what in ("missing", "unexpected", "wrong shape"):
        _say(what, "nothing")
    _say("tensors", f"{len(own)}, {sum(p.numel() for p in model.parameters()):,} parameters")


def _flags(identity: "Identity") -> str:
    """The options that choose a model; its channels and classes are taken from the weights in any case."""
    args = {key: value for key, value in identity.kwargs.items() if key not in ("in_chans", "num_classes")}
    return f"--model {identity.name}" + (f" --model-args '{json.dumps(args)}'" if args else "")


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _explain(error: "MismatchError", file: Checkpoint, name: str | None) -> "MismatchError":
    """Print every key that does not fit, and add a remedy to the error where there is one."""
    from sightline.models.weights.fit import CheckpointError, MismatchError
    from sightline.models.weights.identify import identify
    from sightline.models.weights.layouts import rename

    origins = {} if file.native else {rename(key, file.family): key for key in file.state}
    for what, keys in error.mismatch.rows():
        for key in keys:
            origin = origins.get(key.split(" ")[0], key)
            _say(what.removeprefix("of the "), key if origin in key else f"{key} ({origin} in the file)")
    try:
        found = identify(file.state)[0]
        if name is not None and not found.exact:
            found = identify(file.state, [name])[0]
        remedy = f"; it fits with {_flags(found)}"
    except CheckpointError:
        remedy = "; nothing was written"
    return MismatchError(error.what, error.mismatch, remedy)


COMMAND = Command(
    Options,
    run,
    help="a checkpoint of any origin into sightline's layout, as safetensors",
    examples=(
        "  sightline convert public.pth inline_swin_tiny.safetensors\n"
        "  sightline convert public.pth out.safetensors --img-size 384x640 --num-classes 10\n"
        "  sightline convert public.pth out.safetensors --model soft_small --model-args depths=1,3,20,4"
    ),
)
