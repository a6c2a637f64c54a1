"""Recipes and command lines into a `Config`: every key and value is checked, and a wrong one is named in one line.

config = resolve(load_recipe("imagenette"), {"optim.lr": "1e-3", "data.path": "pictures"})
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from sightline.engine.config import CONFIGS, AnyConfig
from sightline.engine.values import ConfigError, check

BASE, TASK, DEFAULT_TASK = "base", "task", "classification"
MAX_BASES = 8
SEQUENCE = "tag:yaml.org,2002:seq"


def recipe_names() -> list[str]:
    """The packaged recipes."""
    folder = resources.files("sightline") / "recipes"
    found = (item.name for item in folder.iterdir()) if folder.is_dir() else ()
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))


def load_recipe(name: str, depth: int = 0) -> dict[str, Any]:
    """A packaged recipe or a YAML file as nested dictionaries, laid over the recipe that it names as its base."""
    text, where = _text(name)
    try:
        loaded = yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{where}: not YAML ({' '.join(str(error).split())[:120]})") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{where}: not a configuration; expected keys such as {', '.join(sections())}")
    base = loaded.pop(BASE, None)
    if base is None:
        return loaded
    if depth >= MAX_BASES or not isinstance(base, str):
        raise ConfigError(f"{where}: base: {base!r} does not lead to a recipe; name a packaged one or a YAML file")
    beside = Path(where).parent / base
    return merge(load_recipe(str(beside) if beside.is_file() else base, depth + 1), loaded)


def _text(name: str) -> tuple[str, str]:
    """The text of a recipe, and what to call it in messages."""
    packaged = resources.files("sightline") / "recipes" / f"{name}.yaml"
    if name in recipe_names():
        return packaged.read_text(encoding="utf-8"), name
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"no recipe {name!r}; {_near(name, recipe_names(), 'give a packaged one or a YAML file')}")
    try:
        return path.read_text(encoding="utf-8"), name
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not a text file; give a recipe as YAML") from error


def resolve(recipe: Mapping[str, Any], overrides: Mapping[str, str] | None = None) -> Any:
    """The configuration of a recipe and of `section.key` -> text overrides, checked.

    Returns:
        A `Config`, or the one of `CONFIGS` that the key `task` of the recipe names.
    """
    values = merge({}, recipe)
    for key, text in (overrides or {}).items():
        section, _, name = key.partition(".")
        values = merge(values, {section: {name: parse(text)}})
    config = _build(_config_class(values.get(TASK, DEFAULT_TASK)), values, "")
    config.check()
    return config


def _config_class(task: Any) -> type[AnyConfig]:
    if not isinstance(task, str) or task not in CONFIGS:
        near = _near(str(task), list(CONFIGS), f"it is one of {', '.join(CONFIGS)}")
        raise ConfigError(f"task: no task {task!r}; {near}")
    return CONFIGS[task]


def parse(text: str) -> Any:
    """What a value on the command line means: YAML, or the text itself where that is none or nothing."""
    if not text.strip():
        return text
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return text


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, section by section; a value, a mapping of arguments too, replaces the one below."""
    merged = dict(below)
    for section, values in above.items():
        old = merged.get(section)
        merged[section] = {**old, **values} if isinstance(old, Mapping) and isinstance(values, Mapping) else values
    return merged


def sections(task: str = DEFAULT_TASK) -> dict[str, type]:
    """The sections of a task's configuration with their dataclasses."""
    hints = get_type_hints(CONFIGS[task])
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}


def entries() -> Iterator[tuple[str, Any]]:
    """Every `section.key` of any task with its field; of a key that tasks share, the first one's."""
    seen = set()
    for task in CONFIGS:
        for name, cls in sections(task).items():
            for item in fields(cls):
                if (key := f"{name}.{item.name}") not in seen:
                    seen.add(key)
                    yield key, item


def to_yaml(config: AnyConfig) -> str:
    """The configuration as YAML, which `load_recipe` reads back."""
    return dump(_plain(asdict(config)))


class _Dumper(yaml.SafeDumper):
    """A key a line, and lists in brackets."""


_Dumper.add_representer(list, lambda dumper, items: dumper.represent_sequence(SEQUENCE, items, flow_style=True))


def dump(values: Mapping[str, Any]) -> str:
    """Sections of a configuration as YAML, in one style throughout."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100)


def to_dict(config: AnyConfig) -> dict[str, Any]:
    """The configuration as nested dictionaries and lists."""
    return _plain(asdict(config))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _build(cls: Any, values: Any, where: str) -> Any:
    """The dataclass `cls` from a dictionary; `where` is the dotted name of its place."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: {values!r} is not a section; write its keys below it")
    hints = get_type_hints(cls)
    for key in values:
        if key not in hints:
            name = f"{where}.{key}" if where else str(key)
            raise ConfigError(f"no key {name!r} in the configuration; {_nearest_key(name, where, hints)}")
    built = {}
    for item in fields(cls):
        if item.name not in values:
            continue
        name, value = f"{where}.{item.name}".lstrip("."), values[item.name]
        hint = hints[item.name]
        built[item.name] = _build(hint, value or {}, name) if is_dataclass(hint) else check(name, value, hint, item)
    return cls(**built)


def _nearest_key(name: str, where: str, hints: Mapping[str, Any]) -> str:
    every = [key for key, _ in entries()]
    inside = [f"{where}.{key}" if where else key for key in hints]
    close = get_close_matches(name, inside, 1, cutoff=0.6) or get_close_matches(name, every, 1, cutoff=0.4)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(inside)}"


def unknown_key(name: str, others: Iterable[str] = ()) -> str:
    """The message for a key, as on a command line, that neither the configuration nor `others` have."""
    if name == TASK:
        return "task: a recipe says what is trained; choose one with --config"
    close = get_close_matches(name, [*others, *(key for key, _ in entries())], 1, cutoff=0.5)
    remedy = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sections())}"
    return f"no key {name!r} in the configuration; {remedy}"


def _near(name: str, names: list[str], otherwise: str) -> str:
    close = get_close_matches(name, names, 1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else otherwise
