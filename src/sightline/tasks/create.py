"""Models by name, from timm's registry; a wrong name or argument is an error of one line."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import timm
from torch import nn

from sightline.models.weights.identify import arguments
from sightline.models.zoo import VARIANTS


def create(name: str, kwargs: Mapping[str, Any], pretrained: bool = False, section: str = "model") -> nn.Module:
    """A registered model; a wrong name or argument is an error of one line.

    Args:
        pretrained: with the weights that timm publishes, downloaded.
        section: of the configuration that is to blame.
    """
    key = {"model": "model.name", "distill": "distill.teacher"}[section]
    known = [*VARIANTS, *timm.list_models()] if name not in VARIANTS else []
    if name not in VARIANTS and name.split(".")[0] not in known:
        close = get_close_matches(name, known, 1, cutoff=0.5)
        remedy = f"did you mean {close[0]!r}?" if close else "`sightline list` and timm.list_models() show all"
        raise ValueError(f"{key}: no model {name!r}; {remedy}")
    if name in VARIANTS:
        own = arguments(name)
        for key in kwargs:
            if key not in own:
                close = get_close_matches(key, own, 1, cutoff=0.5)
                remedy = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(own)}"
                raise ValueError(f"{section}.args: {name} has no argument {key!r}; {remedy}")
    try:
        return timm.create_model(name, pretrained=pretrained, **{k: _tuple(v) for k, v in kwargs.items()})
    except TypeError as error:
        raise ValueError(f"{section}.args: {name} refuses its arguments ({error})") from error
    except OSError as error:
        if not pretrained:
            raise
        raise ValueError(
            f"{key}: the published weights of {name} cannot be downloaded; look at the connection, or give a file as "
            f"{section}.checkpoint"
        ) from error
    except RuntimeError as error:
        raise ValueError(f"{key}: {name} cannot be built ({' '.join(str(error).split())})") from error


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value
