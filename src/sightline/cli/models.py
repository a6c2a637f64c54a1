"""Names, sizes and arguments of models as one types them."""

import json
import re
from collections.abc import Iterable
from typing import Any

from sightline.util import names
from sightline.util.errors import InputError

Arguments = dict[str, Any]  # keyword arguments of a model, as JSON has them


def known(name: str) -> str:
    """The name of a registered model, or an error that suggests the nearest one."""
    from sightline.models.factory import variant_name

    return variant_name(name)


def parse_size(text: str) -> int | tuple[int, int]:
    """`224` -> 224, `384x640` -> (384, 640), height first."""
    height, width = names.parse_size(text)
    return height if height == width else (height, width)


def parse_classes(number: int) -> int:
    """A number of classes; 0 is a model without classifier."""
    if not 0 <= number <= 1_000_000:
        raise InputError(f"--num-classes: expected 0 (no classifier) to 1000000; got {number}")
    return number


def parse_model_args(texts: Iterable[str]) -> Arguments:
    """`depths=1,3,20,4`, `attention=softmax`, both with a comma between, or a JSON object -> arguments of a model."""
    args: Arguments = {}
    for text in (part for given in texts for part in _apart(given)):
        key, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            loaded = _json(text)
            if not isinstance(loaded, dict):
                raise InputError(f"--model-args: {text!r} is not a JSON object; write key=value instead")
            args.update(loaded)
        elif equals and key.strip().isidentifier():
            args[key.strip()] = _value(value.strip())
        else:
            raise InputError(f"--model-args: {text!r}; write key=value, such as depths=1,3,20,4, or a JSON object")
    return args


def _apart(text: str) -> list[str]:
    """`a=1,2,b=x(c=3,d=4)` -> `a=1,2` and `b=x(c=3,d=4)`."""
    return [text] if text.lstrip().startswith("{") else re.split(r",(?=\s*[A-Za-z_]\w*=)(?![^(]*\))", text)


def check_model_args(name: str, args: Arguments) -> None:
    """Reject arguments that the model does not have."""
    from sightline.models.factory import check_arguments

    check_arguments(name, args)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value(text: str) -> object:
    """JSON where it is; else a list of JSON values with commas between them; else the text itself."""
    for form in (text, f"[{text}]"):
        value = _json(form)
        if value is not None:
            return value
    return text
