"""A checkpoint and the model that it goes into, for the commands that read weights."""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.models import check_model_args, known
from sightline.cli.options import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.models.base import VisionModel
    from sightline.models.weights.identify import Identity


@dataclass(frozen=True)
class Checkpoint:
    """A file of weights: its family, whether its layout is sightline's own, and that layout without data."""

    path: Path
    state: "dict[str, Tensor]"
    family: str
    native: bool
    shapes: "dict[str, Tensor]"
    metadata: dict[str, str]

    @classmethod
    def read(cls, path: str) -> "Checkpoint":
        """Read a file safely; raises `CheckpointError` with one line for anything that is not weights."""
        from sightline.models.weights.fit import read_metadata, read_state
        from sightline.models.weights.identify import native_shapes

        metadata = read_metadata(path)
        refuse_others(path, metadata)
        state = read_state(path)
        with naming(path):
            family, native, shapes = native_shapes(state)
        return cls(Path(path), state, family, native, shapes, metadata)


def refuse_others(path: str | Path, metadata: Mapping[str, str]) -> None:
    """Refuse weights that say of themselves that they are of something else than a classifier or its backbone.

    Raises:
        UsageError: names the file and the commands that take it.
    """
    if "sequences" in metadata:
        raise UsageError(f"{path}: a model of sequences, not of images; `sightline eval` takes it")
    what = {"segmentation": "a segmenter", "detection": "a detector"}.get(metadata.get("task", ""))
    if what is not None:
        raise UsageError(f"{path}: {what}, not a classifier; `sightline eval` and `sightline predict` take it")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Begin the message of a `CheckpointError` with the file that it is about."""
    from sightline.models.weights.fit import CheckpointError, MismatchError

    try:
        yield
    except MismatchError as error:
        raise MismatchError(f"{path}: {error.what}", error.mismatch) from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def choose(file: Checkpoint, name: str | None, args: dict[str, Any]) -> "list[Identity]":
    """The model for a checkpoint, first, and those that its shapes cannot tell from it.

    Args:
        file: the checkpoint.
        name: the model to use; by default what the file says of itself, or what its shapes show.
        args: arguments of the model that replace what was found.
    """
    from sightline.models.weights.identify import FREE_ARGS, Identity, arguments, identify

    if name is not None:
        found = [Identity(known(name), _task(file, name))]
    else:
        recorded = _recorded(file)
        found = [recorded] if recorded else identify(file.state)
    chosen = []
    for identity in found:
        check_model_args(identity.name, args)
        own = arguments(identity.name)
        if "depths" in args:
            _check_depths(file, identity.name, args["depths"])
        kwargs = {key: value for key, value in {**identity.kwargs, **args}.items() if value != own[key]}
        chosen.append(Identity(identity.name, kwargs, not kwargs.keys() - FREE_ARGS))
    return chosen


def _check_depths(file: Checkpoint, name: str, depths: Any) -> None:
    """Never build more blocks than the weights show, whoever asks for them."""
    from sightline.models.weights.fit import CheckpointError
    from sightline.models.weights.shapes import observe
    from sightline.models.zoo import VARIANTS

    seen = observe(file.shapes, VARIANTS[name].cls).depths
    asked = tuple(depths) if isinstance(depths, list | tuple) else (depths,)
    if asked != seen:
        raise CheckpointError(f"depths={asked} of {name}, but the weights have {seen}; leave it out, or give these")


def load(file: Checkpoint, identity: "Identity") -> "VisionModel":
    """The model with the weights of the file, to the last key; tables are resampled to its size.

    Raises:
        MismatchError: the keys or shapes do not fit.
    """
    import torch

    from sightline.models.weights.fit import CheckpointError, adapt
    from sightline.models.weights.identify import build_empty, check
    from sightline.models.zoo import create

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # of a new classifier, which the command reports
        torch.manual_seed(0)
        # Before memory is taken: forged shapes end here.
        empty: Any = build_empty(identity.name, identity.kwargs)
        check(adapt(file.shapes, empty), empty, identity)
        try:
            model: Any = create(identity.name, **identity.kwargs)
        except (MemoryError, RuntimeError) as error:  # what torch raises where memory does not suffice
            size = sum(p.numel() for p in empty.parameters()) * 4 / 1e9
            raise CheckpointError(f"{identity} needs {size:.1f} GB; give a smaller --img-size") from error
        model.load_state_dict(file.state)
    return model


def _task(file: Checkpoint, name: str) -> dict[str, Any]:
    """Channels and classes of a checkpoint, where they are not the usual ones."""
    from sightline.models.weights.fit import CheckpointError
    from sightline.models.weights.shapes import observe
    from sightline.models.zoo import VARIANTS

    cls = VARIANTS[name].cls
    if cls.family != file.family:
        raise CheckpointError(
            f"these are weights of the {file.family} family, not of {cls.family} as {name}; "
            f"see `sightline list '*{file.family}*'` for the models that read them"
        )
    layout = observe(file.shapes, cls)
    seen = {"in_chans": (layout.in_chans, 3), "num_classes": (layout.num_classes, 1000)}
    return {key: value for key, (value, usual) in seen.items() if value != usual}


def _recorded(file: Checkpoint) -> "Identity | None":
    """The model that a file written by `sightline convert` names, if its weights fit that."""
    from sightline.models.weights.fit import compare
    from sightline.models.weights.identify import Identity, arguments, build_empty
    from sightline.models.weights.shapes import observe
    from sightline.models.zoo import VARIANTS

    name = file.metadata.get("model", "")
    if name not in VARIANTS or VARIANTS[name].cls.family != file.family:
        return None
    try:
        args = json.loads(file.metadata.get("model_args", "{}"))
        own = {**arguments(name), **args}
        depths = own["depths"] if isinstance(own["depths"], list | tuple) else [own["depths"]]
        if tuple(depths) != observe(file.shapes, VARIANTS[name].cls).depths:
            return None  # never build what the weights do not show
        fits = not compare(file.shapes, build_empty(name, args))
    except (ValueError, TypeError, RecursionError):
        return None
    return Identity(name, args, exact=not args) if fits else None
