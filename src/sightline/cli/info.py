"""`sightline info`: what a model is and what it costs at a given size."""

import json
from dataclasses import dataclass
from typing import Any

from sightline.cli.models import known, parse_classes, parse_size
from sightline.cli.options import Command, UsageError, option, positional
from sightline.cli.output import Column, show

FIGURES = (Column("figure"), Column("measured", right=True), Column("published", right=True))
STAGES = (
    Column("stage", right=True),
    Column("grid", right=True),
    Column("tokens", right=True),
    Column("dim", right=True),
    Column("heads", right=True),
    Column("depth", right=True),
    Column("attention"),
)
NEWTON_NOTE = (
    "The published FLOPs of SOFT leave out the Newton steps that invert the landmark matrix; those measured "
    "here count them."
)


@dataclass(frozen=True)
class Options:
    """Describe a model: parameters, multiply-adds and activations at a size, its stages, its input.

    Nothing is downloaded and no memory is taken: the model is built without weights.
    """

    name: str = positional("model, one of `sightline list`")
    img_size: str | None = option("pixels, 224 or 384x640 (height x width); by default as published", metavar="SIZE")
    attention: str | None = option("other mechanisms, such as inline,inline,softmax,softmax", metavar="PATTERN")
    num_classes: int | None = option("classes; by default 1000, 0 for no classifier", metavar="N")
    json: bool = option("print JSON", default=False)


def run(options: Options) -> None:
    """Print what there is to know about a model."""
    facts = describe(options)
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    height, width = facts["img_size"]
    published = facts["published"]
    print(f"{facts['name']} ({facts['family']}) at {height}x{width}, {facts['num_classes']} classes")
    print(f"paper: {facts['paper']}\n")
    rows = [
        ["parameters", f"{facts['params']:,}", _number(published["params_m"], "M", 2)],
        ["FLOPs (multiply-adds)", f"{facts['macs'] / 1e9:,.2f} G", _number(published["flops_g"], "G", 1)],
        ["activations", f"{facts['activations'] / 1e6:,.2f} M", "-"],
        ["ImageNet-1K top-1", "-", _number(published["top1"], "%", 1)],
    ]
    show(FIGURES, rows)
    print(f"Published figures are for {published['img_size']}x{published['img_size']}.")
    for note in facts["notes"]:
        print(note)
    print()
    show(STAGES, [_stage_cells(i, stage) for i, stage in enumerate(facts["stages"], 1)])
    print("\ninput: " + _input_line(facts["input"]))


def describe(options: Options) -> dict[str, Any]:
    """The facts about a model, in the order in which they are printed as JSON."""
    from sightline.bench import measure_cost
    from sightline.layers.pattern import format_pattern, parse_pattern
    from sightline.layers.spec import MECHANISMS
    from sightline.models.base import to_pair
    from sightline.models.weights.identify import arguments, build_empty
    from sightline.models.zoo import VARIANTS

    name = known(options.name)
    variant, own = VARIANTS[name], arguments(name)
    given = _given(options)
    model: Any = build_empty(name, given).eval()
    size = to_pair(given.get("img_size", variant.size))
    try:
        cost = measure_cost(model, (3, *size))
        stages = describe_stages(model, size)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{name} cannot take images of {size[0]}x{size[1]}: {reason}") from error
    published = parse_pattern(own["attention"], own["depths"])
    used = parse_pattern(given.get("attention") or own["attention"], own["depths"])
    return {
        "name": name,
        "family": variant.cls.family,
        "paper": MECHANISMS[published[0][0].name].paper,
        "img_size": list(size),
        "num_classes": model.num_classes,
        "attention": format_pattern(used),
        "params": cost.params,
        "macs": cost.macs,
        "activations": cost.activations,
        "published": {
            "img_size": variant.size,
            "params_m": variant.params,
            "flops_g": variant.flops,
            "top1": variant.top1,
        },
        "stages": stages,
        "input": _input(model),
        "notes": [*([NEWTON_NOTE] if variant.cls.family == "soft" else []), *_table_note(name, given, cost.params)],
    }


def _table_note(name: str, given: dict[str, Any], params: int) -> list[str]:
    """Why a model has other parameters at another size: its position tables have an entry for every token."""
    from sightline.models.weights.identify import build_empty

    usual: Any = build_empty(name, {key: value for key, value in given.items() if key != "img_size"})
    more = params - sum(p.numel() for p in usual.parameters())
    if not more:
        return []
    size = "x".join(map(str, usual.img_size))
    return [
        f"{abs(more):,} parameters {'more' if more > 0 else 'fewer'} than at {size}: position tables have an entry for "
        f"every token. A model built for {size} takes this size too, by interpolating them."
    ]


def describe_stages(model: Any, size: tuple[int, int]) -> list[dict[str, Any]]:
    """Grid, width, heads, depth and mechanisms of every stage for images of `size`."""
    import torch

    from sightline.layers.pattern import format_pattern

    image = torch.empty(1, model.in_chans, *size, device="meta")
    maps = model.forward_intermediates(image, intermediates_only=True)
    staged = getattr(model, "stages", None)
    blocks = [model.blocks] if staged is None else [stage.blocks for stage in staged]
    return [
        {
            "grid": list(maps[i - len(blocks)].shape[-2:]),
            "dim": maps[i - len(blocks)].shape[1],
            "heads": _heads(stage[0].attn),
            "depth": len(stage),
            "attention": format_pattern([[block.attn.mechanism for block in stage]]),
        }
        for i, stage in enumerate(blocks)
    ]


def _given(options: Options) -> dict[str, Any]:
    """The arguments of the model that were asked for."""
    given: dict[str, Any] = {}
    if options.img_size is not None:
        given["img_size"] = parse_size(options.img_size)
    if options.attention is not None:
        given["attention"] = options.attention
    if options.num_classes is not None:
        given["num_classes"] = parse_classes(options.num_classes)
    return given


def _heads(attn: Any) -> int:
    return int(attn.num_heads if hasattr(attn, "num_heads") else attn.core.num_heads)


def _input(model: Any) -> dict[str, Any]:
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(model)
    keys = ("input_size", "interpolation", "crop_pct", "mean", "std")
    return {key: list(config[key]) if isinstance(config[key], tuple) else config[key] for key in keys}


def _input_line(config: dict[str, Any]) -> str:
    size = "x".join(map(str, config["input_size"]))
    mean, std = (", ".join(f"{value:g}" for value in config[key]) for key in ("mean", "std"))
    return f"{size}, {config['interpolation']}, crop {config['crop_pct']:g}, mean {mean}, std {std}"


def _number(value: float | None, unit: str, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} {unit}"


def _stage_cells(i: int, stage: dict[str, Any]) -> list[str]:
    height, width = stage["grid"]
    numbers = (i, f"{height}x{width}", height * width, stage["dim"], stage["heads"], stage["depth"])
    return [*map(str, numbers), stage["attention"]]


COMMAND = Command(
    Options,
    run,
    help="what a model is and what it costs at a given size",
    examples=(
        "  sightline info inline_swin_tiny\n"
        "  sightline info inline_deit_tiny --img-size 384x640 --attention softmax\n"
        "  sightline info soft_tiny --json"
    ),
)
