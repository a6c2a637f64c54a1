"""What commands share about models: their names, sizes and arguments as one types them."""

import json
import re
from collections.abc import Iterable
from typing import Any

from sightline.cli.options import UsageError
from sightline.util import names


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
        raise UsageError(f"--num-classes: {number} is not a number of classes; give 0 (no classifier) to 1000000")
    return number


def parse_model_args(texts: Iterable[str]) -> dict[str, Any]:
    """`depths=1,3,20,4`, `attention=softmax`, both with a comma between, or a JSON object -> arguments of a model."""
    args: dict[str, Any] = {}
    for text in (part for given in texts for part in _apart(given)):
        key, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            loaded = _json(text)
            if not isinstance(loaded, dict):
                raise UsageError(f"--model-args: {text!r} is not a JSON object; write key=value instead")
            args.update(loaded)
        elif equals and key.strip().isidentifier():
            args[key.strip()] = _value(value.strip())
        else:
            raise UsageError(f"--model-args: {text!r}; write key=value, such as depths=1,3,20,4, or a JSON object")
    return args


def _apart(text: str) -> list[str]:
    """`a=1,2,b=x(c=3,d=4)` -> `a=1,2` and `b=x(c=3,d=4)`."""
    return [text] if text.lstrip().startswith("{") else re.split(r",(?=\s*[A-Za-z_]\w*=)(?![^(]*\))", text)


def check_model_args(name: str, args: dict[str, Any]) -> None:
    """Reject arguments that the model does not have."""
    from sightline.models.factory import check_arguments

    check_arguments(name, args)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value(text: str) -> Any:
    """JSON where it is; else a list of JSON values with commas between them; else the text itself."""
    for form in (text, f"[{text}]"):
        value = _json(form)
        if value is not None:
            return value
    return text
