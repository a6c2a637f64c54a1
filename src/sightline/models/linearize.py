"""Linear vision transformers from trained softmax ones: the same weights around another attention.

    student = sightline.linearize(timm.create_model("vit_tiny_patch16_224", pretrained=True), "inline", keep=[0, 6, 11])

What a mechanism adds starts where it changes least. The result is close to its source after a training such as that of
`sightline linearize`; see docs/linearize.md.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sightline.layers.attention import Attention
from sightline.layers.core import Core
from sightline.layers.pattern import Pattern, format_pattern, parse_pattern
from sightline.layers.spec import Spec
from sightline.models.attention_error import attention_errors
from sightline.models.base import Arguments, VisionModel
from sightline.models.from_timm import VIT, Source, read_swin, read_vit
from sightline.models.weights.description import recorded_arguments
from sightline.models.weights.fit import compare, fit_mechanism
from sightline.models.weights.identify import arguments
from sightline.models.weights.reader import State
from sightline.models.zoo import VARIANTS, create
from sightline.util.errors import InputError, WeightsWarning, shown
from sightline.util.text import printable

SOFTMAX = Spec("softmax")
AUTO = "auto:"
# What "auto" is for a plain vision transformer, as in the model in the package, and for other models.
PLAIN, OTHER = str(VARIANTS[VIT].args["attention"]), "inline"
# What a preprocessing is described by in timm's description of a model.
PREPROCESSING = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode", "num_classes", "label_names")
Keep = int | Sequence[int] | str


@dataclass(frozen=True)
class Inherited:
    """What a linear model has from its source.

    Args:
        source: the name of the source.
        attention: the mechanism of every block, as `sightline.layers.pattern` writes it.
        kept: the blocks that keep the attention of the source, counted from 0.
        parameters: weights of the source that the model has.
        new: tensors of the model that the source does not have.
        left: tensors of the source that the model does not have.
    """

    source: str
    attention: str
    kept: tuple[int, ...]
    parameters: int
    new: tuple[str, ...]
    left: tuple[str, ...]

    def __str__(self) -> str:
        """One line."""
        kept = f", softmax kept in blocks {', '.join(map(str, self.kept))}" if self.kept else ""
        new = f"{len(self.new)} new tensors (such as {self.new[0]})" if self.new else "nothing new"
        left = f", {len(self.left)} left out (such as {self.left[0]})" if self.left else ""
        return f"{self.source} with {self.attention}{kept}: {self.parameters:,} weights inherited, {new}{left}"


def linearize(
    model: nn.Module, attention: Pattern = "inline", keep: Keep = 0, *, images: Tensor | None = None
) -> VisionModel:
    """A model with another attention and all weights of `model`.

    Sources are timm's vision transformers (ViT, DeiT, DeiT-III, the image towers of CLIP and SigLIP, DINOv2; class and
    distillation tokens, registers, layer scale and norms of queries and keys are kept), timm's Swin, and our own models
    with `attention="softmax"`. The number of heads is that of the source. `model` itself is not changed.

    Args:
        model: the source, on any device, in any dtype.
        attention: the mechanism of every block, or a pattern of mechanisms; see `sightline list --attention`. "auto" is
            InLine attention, in a plain vision transformer with windows and agents, which is closer to softmax.
        keep: blocks that keep the attention of the source: their number, spread evenly over the depth; a list of them,
            counted from 0; or "auto:3" for the three whose output changes most on `images`.
        images: (batch, channels, height, width), normalized; for `keep="auto:k"`.

    Returns:
        A sightline model, in the mode of `model`, whose attribute `inherited` says what it has from the source.

    Raises:
        InputError: the source has no such attention, or a part that cannot be rebuilt; `keep` does not fit.

    Example:
        >>> import sightline, timm
        >>> source = timm.create_model("vit_tiny_patch16_224", depth=2)
        >>> student = sightline.linearize(source, "inline", keep=[1])
        >>> print(student.inherited)
        vit_tiny_patch16_224 with inline*1+softmax*1, softmax kept in blocks 1: 1,274,536 weights inherited, ...
    """
    source = _read(model)
    depths = source.depths
    count = sum(depths)
    if attention == "auto":
        attention = PLAIN if len(depths) == 1 else OTHER
    before = [spec for stage in parse_pattern(source.attention, depths) for spec in stage]
    wanted = [spec for stage in parse_pattern(attention, depths) for spec in stage]
    if isinstance(keep, str):
        number = _auto(keep, count)
        if number and images is None:
            raise InputError(f"keep={keep!r}: the blocks are chosen by their error on images; pass images")
        kept = _worst(model, attention, number, images) if number and images is not None else ()
    else:
        kept = chosen_blocks(keep, count)
    flat = [before[i] if i in kept else spec for i, spec in enumerate(wanted)]
    return _inherit(model, source, flat, kept)


def chosen_blocks(keep: int | Sequence[int], count: int) -> tuple[int, ...]:
    """The blocks that `keep` names: a number of blocks spread evenly over `count`, or a list of them.

    Raises:
        InputError: more blocks than there are.
    """
    if isinstance(keep, int) and not isinstance(keep, bool) and 0 <= keep <= count:
        return spread_blocks(keep, count)
    if isinstance(keep, Sequence) and all(type(i) is int and 0 <= i < count for i in keep):
        return tuple(sorted(set(keep)))
    raise InputError(
        f"keep={shown(keep)}: the model has {count} blocks; give a number from 0 to {count}, or blocks from 0 to "
        f"{count - 1}"
    )


def spread_blocks(number: int, count: int) -> tuple[int, ...]:
    """`number` of `count` blocks from the first to the last, evenly; a single one is in the middle."""
    if number == 1:
        return (count // 2,)
    return tuple(round(i * (count - 1) / (number - 1)) for i in range(number))


def _auto(keep: str, count: int) -> int:
    number = keep.removeprefix(AUTO)
    if not keep.startswith(AUTO) or not number.isdecimal() or int(number) > count:
        raise InputError(
            f"keep={printable(keep, 40)!r}: expected a number, a list of blocks, or auto:N with N up to {count}"
        )
    return int(number)


def _worst(model: nn.Module, attention: Pattern, number: int, images: Tensor) -> tuple[int, ...]:
    """The blocks whose attention changes most when it is replaced."""
    teacher, student = linearize(model, "softmax").eval(), linearize(model, attention).eval()
    errors = attention_errors(teacher, student, images)
    return tuple(sorted(sorted(range(len(errors)), key=lambda i: -float(errors[i]))[:number]))


def _read(model: nn.Module) -> Source:
    """The source as one of our models with its arguments and weights."""
    if isinstance(model, VisionModel):
        cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
        name = str(cfg.get("architecture", ""))
        if name not in VARIANTS:
            raise InputError(
                f"model: a {type(model).__name__} that was not built by its name; build it with sightline.create_model"
            )
        args = {**recorded_arguments(cfg.get("notes"), type(model)), "num_classes": model.num_classes}
        return Source(name, name, args, dict(model.state_dict()))
    if isinstance(model, VisionTransformer):
        return read_vit(model)
    if type(model).__module__ == "timm.models.swin_transformer":
        return read_swin(model)
    raise InputError(
        f"model: {type(model).__name__} cannot be linearized; give a VisionTransformer or SwinTransformer of timm, "
        f"or a model of sightline"
    )


def _inherit(model: nn.Module, source: Source, flat: Sequence[Spec], kept: tuple[int, ...]) -> VisionModel:
    blocks, like = iter(flat), next(model.parameters())
    pattern = format_pattern([[next(blocks) for _ in range(depth)] for depth in source.depths])
    own, given = arguments(source.variant), {**source.args, "attention": pattern}
    args = {key: value for key, value in given.items() if key in own and value != own[key]}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.simplefilter("ignore", WeightsWarning)
        student = create(source.variant, device="meta" if like.is_meta else None, **args)
        assert isinstance(student, VisionModel)
        neutralize(student)
        state = fit_mechanism(_without_keys(source.state, student), student)
    if mismatch := compare(state, student):
        what, keys = next((what, keys) for what, keys in mismatch.rows() if keys)
        raise InputError(f"model: {source.name} cannot be rebuilt with {pattern}: {keys[0]} is {what}")
    initial = student.state_dict()
    new = tuple(key for key in initial if key not in source.state)
    student.load_state_dict(state)
    _describe(student, model)
    student.inherited = Inherited(  # type: ignore[assignment]
        source.name,
        pattern,
        kept,
        sum(value.numel() for key, value in initial.items() if key not in new),
        new,
        tuple(key for key in source.state if key not in initial),
    )
    return student.to(like.device, like.dtype).train(model.training)


def _without_keys(state: State, student: VisionModel) -> State:
    """`state` without the projections and norms of keys in the blocks whose queries are their own keys."""
    state = dict(state)
    for name, module in student.named_modules():
        if not isinstance(module, Attention) or not module.core.shared_qk:
            continue
        for key in (f"{name}.qkv.weight", f"{name}.qkv.bias"):
            if key in state and state[key].shape[0] == 3 * module.core.dim:
                query, _, value = state[key].chunk(3)
                state[key] = torch.cat([query, value])
        for key in (f"{name}.k_norm.weight", f"{name}.k_norm.bias"):
            state.pop(key, None)
    return state


def neutralize(model: nn.Module) -> None:
    """Start what mechanisms add to the mixed values at zero, so that only the weights of the mixture change."""
    for core in model.modules():
        if isinstance(core, Core):
            residual = getattr(core, "residual", None)
            last = getattr(residual, "fc2", None) or getattr(core.neighbours, "conv", None)
            for parameter in [] if last is None else last.parameters():
                nn.init.zeros_(parameter)


def _describe(student: VisionModel, model: nn.Module) -> None:
    """Give the student the preprocessing of its source."""
    theirs: Arguments = getattr(model, "pretrained_cfg", None) or {}
    cfg: Arguments = student.pretrained_cfg  # type: ignore[assignment]
    cfg.update({key: theirs[key] for key in PREPROCESSING if theirs.get(key) is not None})
    for key in ("url", "hf_hub_id", "file"):  # the weights of the name are others
        cfg.pop(key, None)
