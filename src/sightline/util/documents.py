"""JSON and YAML files that may be damaged or forged: regular files of bounded size, depth and numbers, with types."""

import json
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import JsonValue, TypeAdapter, ValidationError

from sightline.util.errors import FileError
from sightline.util.files import open_regular, reason
from sightline.util.text import printable

T = TypeVar("T")
MAX_JSON = 1 << 30  # bytes; annotations of COCO have 500 MB
MAX_YAML = 1 << 20
MAX_NODES = 100_000  # of a YAML file, aliases counted as often as they are used
MAX_DEPTH = 32
OBJECT = TypeAdapter(dict[str, JsonValue])
DAMAGE = (OSError, ValueError, RecursionError, yaml.YAMLError)
# Numbers as YAML 1.2 has them: 1e-3 is one, 1:30 is a text and not 90, 010 is ten.
DIGITS = "-+.0123456789"
NUMBERS: dict[str, tuple[re.Pattern[str], type]] = {
    "tag:yaml.org,2002:int": (re.compile(r"^[-+]?[0-9]+$"), int),
    "tag:yaml.org,2002:float": (re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"), float),
}


def read_text(path: str | Path, most: int = MAX_JSON) -> str:
    """The text of a regular file in UTF-8, without a byte order mark.

    Raises:
        OSError, ValueError: it cannot be read, or has more than `most` bytes.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise ValueError(f"more than {most:,} bytes")
        return file.read().decode("utf-8-sig")


def check(adapter: TypeAdapter[T], value: object, path: str | Path) -> T:
    """A value with the types of `adapter`.

    Raises:
        FileError: names the file, the key and what is expected there.
    """
    try:
        return adapter.validate_python(value)
    except (ValidationError, RecursionError) as error:
        raise FileError(f"{path}: damaged ({_first(error)})") from None


def read_json(path: str | Path, adapter: TypeAdapter[T]) -> T:
    """Read a JSON file.

    Raises:
        FileError: it is missing, is not JSON, or does not have the types of `adapter`.
    """
    try:
        value = json.loads(read_text(path))
    except OSError as error:
        raise _unreadable(path, error) from error
    except DAMAGE as error:
        raise FileError(f"{path}: damaged ({reason(error)})") from error
    return check(adapter, value, path)


def read_object(path: Path) -> dict[str, JsonValue]:
    """Read a JSON object; {} if the file is missing.

    Raises:
        FileError: it is damaged, or does not hold an object.
    """
    return read_json(path, OBJECT) if path.exists() else {}


def read_yaml(path: str | Path) -> object:
    """Read a YAML file.

    Raises:
        FileError: it is missing, is not YAML, or too large or too deep.
    """
    try:
        return parse_yaml(read_text(path, MAX_YAML))
    except OSError as error:
        raise _unreadable(path, error) from error
    except DAMAGE as error:
        raise FileError(f"{path}: not YAML ({printable(' '.join(str(error).split()), 120)})") from error


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        ValueError, RecursionError, yaml.YAMLError: it is not YAML, or too large or too deep.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Counts nodes before values are made of them: nine lines of aliases can stand for billions of nodes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nodes = self.depth = 0
        self.sizes: dict[str | None, int] = {}  # of anchored nodes

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        before = self.nodes
        self.depth += 1
        self.nodes += self.sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
        if self.nodes > MAX_NODES or self.depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_NODES} values, or more than {MAX_DEPTH} inside each other")
        node = super().compose_node(parent, index)
        self.depth -= 1
        if getattr(event, "anchor", None) and not isinstance(event, yaml.AliasEvent):
            self.sizes[event.anchor] = self.nodes - before
        return node


def _construct_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> object:
    return NUMBERS[node.tag][1](loader.construct_scalar(node))


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in known if tag not in NUMBERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, (_form, _) in NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _form, list(DIGITS))
    _Loader.add_constructor(_tag, _construct_number)


def _unreadable(path: str | Path, error: OSError) -> FileError:
    return FileError(f"{path}: {reason(error).lower()}; check the path and its permissions")


def _first(error: Exception) -> str:
    """The first thing that does not fit."""
    if not isinstance(error, ValidationError):
        return "too deep"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    key = ".".join(printable(part, 40) for part in first["loc"])
    return f"{key and f'{key}: '}{first['msg'].lower()}"
