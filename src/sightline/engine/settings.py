"""Recipes and overrides become a configuration: the dataclass of its task, every key and value checked.

config = configure(load_recipe("imagenette"), {"optim.lr": 1e-3, "data.path": "pictures"})
"""

from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import yaml
from pydantic_core import to_jsonable_python

from sightline.tasks.config import RunConfig
from sightline.tasks.registry import TASKS
from sightline.util.documents import DIGITS, NUMBERS, parse_yaml, read_yaml
from sightline.util.errors import InputError
from sightline.util.names import nearest
from sightline.util.schema import build, unknown_key

BASE, TASK = "base", "task"
EMBEDDED, PHOTOS = "quick", "photos"  # recipes for the embedded data, and for images of the user's own
DEFAULT_TASK = next(iter(TASKS))  # of recipes that name none
MAX_BASES = 8
PATHS = ("data.path", "run.folder")  # even `null`
RECIPES = Path(__file__).parents[1] / "recipes"
SEQUENCE = "tag:yaml.org,2002:seq"
Recipe = dict[str, Any]  # YAML
Key = Field[Any]  # with its help in the metadata


def recipe_names() -> list[str]:
    """The packaged recipes."""
    return sorted(item.name.removesuffix(".yaml") for item in RECIPES.iterdir() if item.name.endswith(".yaml"))


def default_recipe(overrides: Mapping[str, object]) -> str:
    """The recipe if none is named: for images if `overrides` say where they are, else for the embedded ones."""
    section = overrides.get("data")
    path = section.get("path") if isinstance(section, Mapping) else None
    return EMBEDDED if overrides.get("data.path", path) is None else PHOTOS


def load_recipe(name: str, depth: int = 0) -> Recipe:
    """A packaged recipe or a YAML file as nested dictionaries, merged over the recipe that it names as `base`."""
    path = RECIPES / f"{name}.yaml" if name in recipe_names() else Path(name)
    if not path.is_file():
        raise InputError(f"no recipe {name!r}; {nearest(name, recipe_names(), 'give a packaged one or a YAML file')}")
    loaded = read_yaml(path) or {}
    if not isinstance(loaded, dict):
        known = ", ".join(sections(TASKS[DEFAULT_TASK].config))
        raise InputError(f"{name}: not a configuration; expected keys such as {known}")
    base = loaded.pop(BASE, None)
    if base is None:
        return loaded
    if depth >= MAX_BASES or not isinstance(base, str):
        raise InputError(f"{name}: base: {base!r} does not lead to a recipe; name a packaged one or a YAML file")
    neighbour = Path(name).parent / base
    return merge(load_recipe(str(neighbour) if neighbour.is_file() else base, depth + 1), loaded)


def configure(recipe: Mapping[str, object], overrides: Mapping[str, object] | None = None) -> Any:
    """The checked configuration of a recipe.

    Args:
        recipe: sections with their keys.
        overrides: values by `section.key`, or mappings by `section`.

    Returns:
        The `config` of the task in `sightline.tasks.registry.TASKS` that the key `task` names.

    Raises:
        InputError: a key or value that does not fit; values that contradict each other.
    """
    changes: Recipe = {}
    for key, value in (overrides or {}).items():
        section, dot, name = key.partition(".")
        changes = merge(changes, {section: {name: value} if dot else value})
    values = merge(recipe, changes)
    task = values.get(TASK, DEFAULT_TASK)
    if not isinstance(task, str) or task not in TASKS:
        raise InputError(f"task: no task {task!r}; {nearest(str(task), TASKS)}")
    kind = TASKS[task].config
    given = {name: {} if section is None else section for name, section in values.items()}
    return build(kind, given, depth=2, known=[*sections(kind), *keys(kind)])


def parse_changes(texts: Iterable[str], option: str, own: Mapping[str, str]) -> dict[str, object]:
    """KEY=VALUE texts as values by key.

    Args:
        option: what they were given as, for messages.
        own: keys that are not to be changed here, with the option that sets them.
    """
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or "." not in key:
            raise InputError(f"--{option}: expected KEY=VALUE, e.g. batch.size=64; got {text!r}")
        if key in own:
            raise InputError(f"--{option}: {key} follows from {own[key]}; give that instead")
        found[key] = parse(value, key)
    return found


def parse(text: str, key: str = "") -> object:
    """The value of a text on the command line: YAML, or the text itself if it is blank or not YAML.

    For a `key` that holds text, such as a name or a path, it is what was typed, except `null` for none.
    """
    kind = all_keys()[key].type if key in all_keys() else None
    if not text.strip() or key in PATHS or (_is_text(kind) and text != "null"):
        return text
    try:
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _is_text(kind: object) -> bool:
    """Whether a type holds text and nothing else but None."""
    if get_origin(kind) is Literal:
        return all(isinstance(value, str) for value in get_args(kind))
    inner = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    return kind is str or (bool(inner) and all(item is NoneType or _is_text(item) for item in inner))


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> Recipe:
    """`above` over `below`, section by section; a value, even a mapping of arguments, replaces the one below.

    `args` belong to a `name`: with another one, those below are left out.
    """
    merged = dict(below)
    for section, values in above.items():
        old = merged.get(section)
        if isinstance(old, Mapping) and isinstance(values, Mapping):
            other = "name" in old and values.get("name", old["name"]) != old["name"]
            kept = {key: value for key, value in old.items() if key != "args" or not other}
            merged[section] = {**kept, **values}
        else:
            merged[section] = values
    return merged


def sections(kind: type[RunConfig]) -> dict[str, type]:
    """The sections of a configuration."""
    return {name: hint for name, hint in get_type_hints(kind).items() if isinstance(hint, type) and is_dataclass(hint)}


def keys(kind: type[RunConfig]) -> dict[str, Key]:
    """Every `section.key` of a configuration with its field."""
    return {f"{name}.{item.name}": item for name, section in sections(kind).items() for item in fields(section)}


@cache
def all_keys() -> dict[str, Key]:
    """Every `section.key` of any task with its field; tasks that share a key share its help."""
    found: dict[str, Key] = {}
    for spec in TASKS.values():
        found |= {key: item for key, item in keys(spec.config).items() if key not in found}
    return found


def unknown_option(name: str, others: Iterable[str] = ()) -> str:
    """The message for an option that is neither a key of the configuration nor one of `others`."""
    if name == TASK:
        return "task: it follows from the recipe; choose one with --config"
    return unknown_key(name, [*others, *all_keys()])


def to_yaml(config: RunConfig) -> str:
    """The configuration as YAML, which `load_recipe` reads back."""
    return dump(to_dict(config))


class _Dumper(yaml.SafeDumper):
    """One key per line, and lists in brackets."""


_Dumper.add_representer(list, lambda dumper, items: dumper.represent_sequence(SEQUENCE, items, flow_style=True))


for _tag, (_form, _) in NUMBERS.items():  # texts that would be read as numbers are quoted
    _Dumper.add_implicit_resolver(_tag, _form, list(DIGITS))


def dump(values: Mapping[str, object]) -> str:
    """Sections of a configuration as YAML, in one style throughout."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100)


def to_dict(config: RunConfig) -> Recipe:
    """The configuration as nested dictionaries and lists."""
    plain: Recipe = to_jsonable_python(asdict(config))
    return plain
