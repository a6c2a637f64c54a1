"""What a model is and what it costs at a given size."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from timm.data import resolve_model_data_config
from torch import Tensor

from sightline import backend
from sightline.bench.cost import measure_cost
from sightline.layers.pattern import format_pattern, parse_pattern
from sightline.layers.spec import MECHANISMS, Spec
from sightline.models.base import Arguments, Size, VisionModel, to_pair
from sightline.models.factory import variant_name
from sightline.models.weights.identify import arguments, build_empty
from sightline.models.weights.packaged import LICENCE, packaged
from sightline.models.weights.published import PUBLISHED
from sightline.models.zoo import VARIANTS
from sightline.util.errors import InputError
from sightline.util.names import format_size

NEWTON_NOTE = (
    "The published FLOPs of SOFT leave out the Newton steps that invert the landmark matrix; those measured "
    "here count them."
)
# Mechanisms that have kernels, and the operator that has them.
OPERATORS = {
    "inline": "inline_attention",
    "linear": "linear_attention",
    "soft": "soft_attention",
    "soft_norm": "soft_attention",
}


@dataclass(frozen=True)
class StageInfo:
    """A stage: its token grid, width, heads, number of blocks and mechanisms."""

    grid: tuple[int, int]
    dim: int
    heads: int
    depth: int
    attention: str


@dataclass(frozen=True)
class ModelInfo:
    """The facts about a model at a size, in the order in which `sightline info --json` prints them.

    `published` has parameters in millions, multiply-adds in billions and ImageNet-1K top-1 in percent, or None each for
    a model of our own; `input` is what the model is evaluated on.
    """

    name: str
    family: str
    paper: str
    img_size: tuple[int, int]
    num_classes: int
    attention: str
    params: int
    macs: int
    activations: int
    published: dict[str, float | None]
    stages: tuple[StageInfo, ...]
    input: dict[str, Any]
    notes: tuple[str, ...]


def describe_model(
    name: str, *, img_size: Size | None = None, attention: str | None = None, num_classes: int | None = None
) -> ModelInfo:
    """Describe one of our models without memory for its weights.

    Args:
        name: as in `sightline list`.
        img_size: pixels, one number or (height, width); by default as published.
        attention: another mechanism or pattern.
        num_classes: by default 1000; 0 for no classifier.

    Raises:
        InputError: there is no such model or mechanism, or the model cannot take this size.

    Example:
        >>> describe_model("inline_deit_tiny").params
        6477736
    """
    variant, own = VARIANTS[variant_name(name)], arguments(name)
    asked = {"img_size": img_size, "attention": attention, "num_classes": num_classes}
    given = {key: value for key, value in asked.items() if value is not None}
    model = build_empty(name, given).eval()
    assert isinstance(model, VisionModel)
    size = to_pair(variant.size if img_size is None else img_size)
    try:
        cost = measure_cost(model, (model.in_chans, *size))
        image = torch.empty(1, model.in_chans, *size, device="meta")
        maps = cast(list[Tensor], model.forward_intermediates(image, intermediates_only=True))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"img_size={format_size(size)}: {name} cannot take it ({reason})") from error
    published = parse_pattern(own["attention"], own["depths"])
    pattern = parse_pattern(attention or own["attention"], own["depths"])
    conv_depths = own.get("conv_depths", [0] * len(pattern))
    of_stages = zip(maps[-len(pattern) :], own["embed_dims"], own["num_heads"], conv_depths, pattern, strict=True)
    config = resolve_model_data_config(model)
    notes = [NEWTON_NOTE] if variant.cls.family == "soft" else []
    return ModelInfo(
        name=name,
        family=variant.cls.family,
        paper=next(MECHANISMS[block.name].paper for stage in published for block in stage),
        img_size=size,
        num_classes=model.num_classes,
        attention=format_pattern(pattern),
        params=cost.params,
        macs=cost.macs,
        activations=cost.activations,
        published={
            "img_size": variant.size,
            "params_m": None if variant.own else variant.params,
            "flops_g": None if variant.own else variant.flops,
            "top1": variant.top1,
        },
        stages=tuple(
            StageInfo((found.shape[-2], found.shape[-1]), dim, heads, convs + len(blocks), _mixing(convs, blocks))
            for found, dim, heads, convs, blocks in of_stages
        ),
        input={name: config[name] for name in ("input_size", "interpolation", "crop_pct", "mean", "std")},
        notes=(*notes, *_table_note(name, given, cost.params), _weights_note(name), *_kernel_notes(pattern, own)),
    )


def _mixing(convs: int, blocks: list[Spec]) -> str:
    """What mixes the tokens in the blocks of a stage."""
    return ", ".join((["convolutions"] if convs else []) + ([format_pattern([blocks])] if blocks else []))


def _weights_note(name: str) -> str:
    if packaged(name) is not None:
        return f"Weights: in the package, loaded by pretrained=True; {LICENCE}."
    if name not in PUBLISHED:
        return "No weights are published."
    return f"Weights: `sightline download {name}` or pretrained=True; {PUBLISHED[name].licence}."


def _kernel_notes(pattern: list[list[Spec]], own: Arguments) -> list[str]:
    """Where the GPU of this machine runs the reference instead of kernels, and why; nothing without a GPU."""
    if not torch.cuda.is_available():
        return []
    device = torch.device("cuda", torch.cuda.current_device())
    stages = zip(pattern, own["embed_dims"], own["num_heads"], strict=True)
    used = {(block.name, dim // heads) for blocks, dim, heads in stages for block in blocks if block.name in OPERATORS}
    found = (
        (name, dtype, head_dim, backend.device_obstacle(OPERATORS[name], device, dtype, head_dim))
        for name, head_dim in sorted(used)
        for dtype in (torch.bfloat16, torch.float32)
    )
    return [
        f"No kernels for {name} in {dtype}, head dim {head_dim}, the reference runs: {reason}."
        for name, dtype, head_dim, reason in found
        if reason
    ]


def _table_note(name: str, given: Arguments, params: int) -> list[str]:
    """Why a model has more parameters at another size: its position tables have an entry per token."""
    usual = build_empty(name, {key: value for key, value in given.items() if key != "img_size"})
    assert isinstance(usual, VisionModel)
    more = params - sum(p.numel() for p in usual.parameters())
    if not more:
        return []
    size = format_size(usual.img_size)
    return [
        f"{abs(more):,} parameters {'more' if more > 0 else 'fewer'} than at {size}: position tables have an entry per "
        f"token. A model built for {size} takes this size too, by interpolating them."
    ]
