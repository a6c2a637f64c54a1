"""A weight file of one of our families as a model: choose the variant, check its shapes, build it, load it."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from sightline.models.base import Arguments, VisionModel
from sightline.models.factory import check_arguments, variant_name
from sightline.models.weights.fit import MismatchError, adapt, compare
from sightline.models.weights.heads import RecordedHeads, published_heads, recorded_heads, with_heads
from sightline.models.weights.identify import Identity, arguments, build_empty, nearest_variants, plain, recognize
from sightline.models.weights.layouts import rename
from sightline.models.weights.reader import State, Weights
from sightline.models.weights.recorded import read_arguments, within
from sightline.models.weights.shapes import Layout
from sightline.models.zoo import VARIANTS, create
from sightline.util.errors import FileError


@dataclass(frozen=True)
class Checkpoint:
    """Weights of one of our families.

    Args:
        weights: the content of the file.
        family: deit, pvt, swin, cswin or soft.
        native: whether the layout is sightline's own.
        shapes: the tensors in sightline's layout, on the meta device.
        layout: what the shapes show, with the heads that are recorded.
        heads: what is recorded about the heads, if the shapes do not show them all.
    """

    weights: Weights
    family: str
    native: bool
    shapes: State
    layout: Layout
    heads: RecordedHeads | None

    @classmethod
    def of(cls, weights: Weights) -> "Checkpoint":
        """Recognize the family and the layout.

        Raises:
            FileError: the tensors are of no known family, or damaged.
        """
        family, native, shapes, layout = recognize(weights.state)
        heads = recorded_heads(weights) if None in layout.num_heads else None
        layout = with_heads(layout, heads.counts) if heads is not None else layout
        return cls(weights, family, native, shapes, layout, heads)


@dataclass(frozen=True)
class Choice:
    """The model of a checkpoint.

    Args:
        model: with the weights.
        identity: variant and arguments.
        alike: variants that shapes cannot tell from it.
        guessed_heads: the heads that were assumed, if nothing shows or records them.
        guessed_attention: the pattern that was assumed, if other mechanisms have the same shapes.
    """

    model: VisionModel
    identity: Identity
    alike: tuple[Identity, ...] = ()
    guessed_heads: str = ""
    guessed_attention: str = ""


@contextmanager
def prefix_errors(path: Path) -> Iterator[None]:
    """Start the message of a `FileError` with the file that it is about."""
    try:
        yield
    except FileError as error:
        error.args = (f"{path}: {error}",)
        raise


def load_model(file: Checkpoint, name: str | None = None, args: Arguments | None = None) -> Choice:
    """The model for a checkpoint, with every key of its weights; tables are resampled to its size.

    Args:
        file: the checkpoint.
        name: the variant; by default the one that the file records, or that its shapes show.
        args: arguments that replace those that were found.

    Raises:
        InputError: there is no such variant or argument.
        FileError: the weights are of another family, depth or number of heads, the model does not fit into memory, or
            (MismatchError) the keys or shapes do not fit.
    """
    args = args or {}
    recorded = _recorded(file) if name is None else None
    if recorded is not None:
        found: Sequence[Identity] = [recorded[0]]
    elif name is not None:
        found = [_named(file, name)]
    else:
        vit = file.family == "deit" and not file.native and file.heads is None
        layout = with_heads(file.layout, published_heads(file.layout)) if vit else file.layout
        found = nearest_variants(layout, file.family)
    _check_args(file, found[0].name, args)
    identity, *alike = (_with_args(identity, args) for identity in found)
    model = _build(file, identity, recorded[1] if recorded is not None and not args else None)
    guess = recorded is None and not identity.exact
    heads = {**arguments(identity.name), **identity.kwargs}["num_heads"]
    unknown = None in file.layout.num_heads
    return Choice(
        model,
        identity,
        tuple(alike),
        ", ".join(map(str, _tuple(heads))) if guess and unknown and "num_heads" not in args else "",
        str(identity.kwargs.get("attention", "")) if guess and "attention" not in args else "",
    )


def _build(file: Checkpoint, identity: Identity, empty: nn.Module | None) -> VisionModel:
    """A variant with the weights of the file; `empty` is the same on the meta device, if it was already built."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # about a new classifier and heads, which callers report
        torch.manual_seed(0)
        # Before memory is allocated: forged shapes end here.
        empty = empty or build_empty(identity.name, identity.kwargs)
        assert isinstance(empty, VisionModel)
        if mismatch := compare(adapt(file.shapes, empty), empty):
            origins = {} if file.native else {rename(key, file.family): key for key in file.weights.state}
            raise MismatchError(f"the weights do not fit {identity}", mismatch, _remedy(file), origins)
        try:
            model = create(identity.name, **identity.kwargs)
        except (MemoryError, RuntimeError) as error:  # how torch reports that memory is insufficient
            size = sum(p.numel() for p in empty.parameters()) * 4 / 1e9
            raise FileError(f"{identity} needs {size:.1f} GB; give a smaller img_size") from error
        model.load_state_dict(file.weights.state)
    assert isinstance(model, VisionModel)
    return model


def _remedy(file: Checkpoint) -> str:
    """The options for the variant that the weights do fit, if there is one."""
    with suppress(ValueError):
        found = nearest_variants(file.layout, file.family)[0]
        if not compare(file.shapes, build_empty(found.name, found.kwargs)):
            return f"; to fit it, pass {found.flags}"
    return ""


def _with_args(identity: Identity, args: Arguments) -> Identity:
    own = arguments(identity.name)
    return Identity(identity.name, {k: v for k, v in {**identity.kwargs, **args}.items() if v != own[k]})


def _check_args(file: Checkpoint, name: str, args: Arguments) -> None:
    """Reject arguments that a variant does not have, or that contradict the weights."""
    check_arguments(name, args)
    if not _agrees(args, "depths", file.layout):  # never build more than the weights show
        raise FileError(
            f"depths={_tuple(args['depths'])} of {name}, but the weights have {file.layout.depths}; "
            f"leave it out, or give these"
        )
    if file.heads is not None and None not in file.layout.num_heads and not _agrees(args, "num_heads", file.layout):
        raise FileError(
            f"num_heads={args['num_heads']}, but {file.heads.source} records {file.heads}; leave num_heads out"
        )


def _named(file: Checkpoint, name: str) -> Identity:
    """The requested variant, with the channels, classes and heads of the weights."""
    cls = VARIANTS[variant_name(name)].cls
    if cls.family != file.family:
        raise FileError(
            f"these are weights of the {file.family} family, not of {cls.family} as {name}; "
            f"see `sightline list '*{file.family}*'` for the models that read them"
        )
    own, layout = arguments(name), file.layout
    seen: Arguments = {"in_chans": layout.in_chans, "num_classes": layout.num_classes}
    if file.heads is not None and None not in layout.num_heads:
        seen["num_heads"] = layout.num_heads
    return Identity(name, {key: plain(value) for key, value in seen.items() if value != own[key]})


def _recorded(file: Checkpoint) -> tuple[Identity, nn.Module] | None:
    """The model that one of our own files names, and the same on the meta device, if the weights fit it."""
    name = file.weights.metadata.get("model", "")
    if name not in VARIANTS or VARIANTS[name].cls.family != file.family:
        return None
    try:
        args = read_arguments(file.weights.metadata)
        check_arguments(name, args)
        with within(file.weights.state):
            empty = build_empty(name, args)
    except ValueError:
        return None  # the shapes show which it is
    return None if compare(file.shapes, empty) else (Identity(name, args), empty)


def _agrees(args: Arguments, key: str, layout: Layout) -> bool:
    """Whether an argument is left out, or says of every stage what the weights do."""
    return key not in args or _tuple(args[key]) == getattr(layout, key)


def _tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
