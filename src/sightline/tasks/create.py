"""Models by name, from timm's registry, and from the card of a file; if one cannot be built, the error is one line."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import timm
import torch
from torch import nn

from sightline.models.factory import check_arguments, check_name
from sightline.models.weights.fit import MismatchError, compare
from sightline.models.weights.packaged import packaged
from sightline.models.weights.published import published_weights
from sightline.models.weights.reader import State
from sightline.models.weights.recorded import check_recordable, within
from sightline.models.zoo import VARIANTS
from sightline.tasks.base import Card
from sightline.util.errors import FileError, InputError, RunError, WeightsWarning
from sightline.util.text import one_line, say

M = TypeVar("M", bound=nn.Module)


def create(name: str, kwargs: Mapping[str, Any], pretrained: bool = False, section: str = "model") -> nn.Module:
    """A registered model; a wrong name or argument is an error of one line.

    Args:
        pretrained: with the weights in the package, or the published ones, downloaded; a line says what of them is
            not loaded.
        section: of the configuration that is to blame.
    """
    key = where = {"model": "model.name", "distill": "distill.teacher"}[section]
    try:
        check_name(name)
        where = f"{section}.args"
        if name in VARIANTS:
            check_arguments(name, kwargs)
            if pretrained and packaged(name) is None:
                where = "model.pretrained" if section == "model" else key
                published_weights(name)
                where = f"{section}.args"
        if section == "model":
            check_recordable(kwargs)
        with _print_warnings(name):
            return timm.create_model(name, pretrained=pretrained, **{k: _tuple(v) for k, v in kwargs.items()})
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error
    except (FileError, RunError):  # the latter if a signal comes while weights are downloaded
        raise
    except OSError as error:
        if not pretrained:
            raise
        raise InputError(
            f"{key}: the published weights of {name} cannot be downloaded; check the connection, or give a file as "
            f"{section}.checkpoint"
        ) from error
    except RuntimeError as error:
        raise InputError(f"{key}: {name} cannot be built ({' '.join(str(error).split())})") from error


@contextmanager
def _print_warnings(name: str) -> Iterator[None]:
    """Print what is said about the weights of a model, such as what of them is not loaded: it belongs to a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", WeightsWarning)
        yield
    for warning in caught:
        say(f"{name}: {str(warning.message).removeprefix(f'{name}: ')}")


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value


def restore(card: Card, state: State, make: Callable[[], M]) -> M:
    """The model that a card describes, with the weights of its file.

    Args:
        card: of the file.
        state: the weights.
        make: builds the model; called on the meta device first, before a forged card can take memory.

    Raises:
        FileError: the card does not describe a model, or one larger than the weights; MismatchError if they do not fit.
    """
    try:
        with torch.device("meta"), within(state):
            mismatch = compare(state, make())
    except (ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError) as error:
        raise FileError(one_line(error, 240)) from error
    if mismatch:
        raise MismatchError(f"the weights do not fit {card.title}", mismatch)
    model = make()
    model.load_state_dict(state)
    return model.eval()
