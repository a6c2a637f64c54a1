"""Which registered variant a state dict belongs to, from the names and shapes of its tensors alone."""

import inspect
import json
from dataclasses import dataclass, field

from torch import nn

from sightline.layers.pattern import format_pattern, parse_pattern
from sightline.layers.spec import Spec
from sightline.models.base import Arguments, to_pair
from sightline.models.pvt import usual_reduction
from sightline.models.pyramid import stage_dims
from sightline.models.weights.fit import MismatchError, compare
from sightline.models.weights.layouts import SIGNATURES, family_of, to_native
from sightline.models.weights.reader import State
from sightline.models.weights.shapes import Layout, observe
from sightline.models.zoo import VARIANTS, create
from sightline.util.errors import FileError, InputError

# Arguments that follow the task or the images; all others are the architecture.
FREE_ARGS = {"img_size", "num_classes", "in_chans"}
UNSEEN = ("softmax_prefix", "agents", "window")  # options of mechanisms whose value no tensor shows


@dataclass(frozen=True)
class Identity:
    """A variant, and the arguments in which the weights differ from it."""

    name: str
    kwargs: Arguments = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """The published architecture: only the image size, the channels and the classes may differ."""
        return not self.kwargs.keys() - FREE_ARGS

    @property
    def flags(self) -> str:
        """The arguments of `load` that choose it; its channels and classes follow from the weights in any case."""
        args = {key: value for key, value in self.kwargs.items() if key not in ("in_chans", "num_classes")}
        return f"model={self.name}" + (f" and give model_args='{json.dumps(args)}'" if args else "")

    def __str__(self) -> str:
        args = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{self.name} ({args})" if args else self.name


def identify(state: State) -> list[Identity]:
    """The variants that `state`, published or native, fits; several if shapes cannot tell them apart.

    Example: for the public soft_small, whose third stage has 20 blocks, the first is
    `Identity("soft_small", {"depths": (1, 3, 20, 4)})` and the second soft_norm_small.

    Args:
        state: a state dict without wrappers, as `read_weights` returns it.

    Raises:
        FileError: it is of no known family, or fits none of its variants.
    """
    family, _, shapes, layout = recognize(state)
    found = nearest_variants(layout, family)
    first = found[0]  # what fits one of them fits all: they differ in no shape
    if mismatch := compare(shapes, build_empty(first.name, first.kwargs)):
        raise MismatchError(f"the weights do not fit {first}", mismatch)
    return found


def nearest_variants(layout: Layout, family: str) -> list[Identity]:
    """The variants of a family that are nearest to a layout, several if shapes cannot tell them apart."""
    names = [name for name, variant in VARIANTS.items() if variant.cls.family == family]
    found = {name: _kwargs(layout, name) for name in names}
    ranks = {name: _rank(layout, name, kwargs) for name, kwargs in found.items()}
    return [Identity(name, found[name]) for name in names if ranks[name] == min(ranks.values())]


def recognize(state: State) -> tuple[str, bool, State, Layout]:
    """The family of a state dict, whether its names are sightline's own, its shapes under those, and what they show."""
    found = family_of(list(state))
    if found is None:
        raise FileError(
            f"no family that sightline reads ({', '.join(sorted(SIGNATURES))}) has keys such as "
            f"{next(iter(state), 'none')!r}; see `sightline list`"
        )
    family, native = found
    shapes = {key: value.detach().to("meta") for key, value in state.items()}
    shapes = shapes if native else to_native(shapes, family)
    cls = next(variant.cls for variant in VARIANTS.values() if variant.cls.family == family)
    return family, native, shapes, observe(shapes, cls)


def build_empty(name: str, kwargs: Arguments) -> nn.Module:
    """The model on the meta device, without memory for its weights.

    Raises:
        InputError: the arguments do not make a model.
    """
    try:
        return create(name, device="meta", **kwargs)
    except (TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{Identity(name, kwargs)} cannot be built: {reason}") from error


def arguments(name: str) -> Arguments:
    """Every argument of a variant: those of its row over the defaults of its family, one value per stage."""
    variant = VARIANTS[name]
    args: Arguments = {}
    for cls in reversed(variant.cls.__mro__):  # a family's defaults over those of `Pyramid`
        parameters = inspect.signature(cls).parameters.values()
        args |= {p.name: p.default for p in parameters if p.default is not p.empty}
    args |= {"img_size": variant.size, **variant.args}
    args["embed_dims"] = stage_dims(args["embed_dims"], variant.cls.num_stages)
    for key in ("embed_dims", "num_heads", "depths"):
        args[key] = (args[key],) if isinstance(args[key], int) else tuple(args[key])
    return args


def _kwargs(layout: Layout, name: str) -> Arguments:
    """The arguments in which a layout differs from a variant."""
    own = arguments(name)
    pattern = _pattern(layout, own["attention"])
    seen: Arguments = {
        **vars(layout),  # its fields have the names of arguments
        "num_heads": _num_heads(layout, own),
        "attention": pattern if pattern != _own_pattern(layout, own["attention"]) else own["attention"],
        "mlp_ratio": layout.mlp_ratios[0],
        "sr_ratios": _sr_ratios(layout),
        "window_size": layout.window_size or own.get("window_size"),
        "img_size": own["img_size"] if layout.img_size in (None, to_pair(own["img_size"])) else layout.img_size,
    }
    return {key: plain(seen[key]) for key in seen if key in own and seen[key] != own[key]}


def plain(value: object) -> object:
    """In short notation: a single value for a single stage, a single side for a square, patterns as text."""
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        return format_pattern(value)
    if isinstance(value, tuple) and (len(value) == 1 or (len(value) == 2 and value[0] == value[1])):
        return value[0]
    return value


def _pattern(layout: Layout, own: str) -> tuple[tuple[Spec, ...], ...]:
    """The pattern of a layout, with SOFT read as SOFT++ for a variant that uses that, and with the options of the
    variant that have no tensors."""
    plus = Spec("soft_norm") if "soft_norm" in own else Spec("soft")
    unseen = {_visible(spec): spec for blocks in _own_pattern(layout, own) or () for spec in blocks}
    return tuple(
        tuple(plus if spec.name == "soft" else unseen.get(_visible(spec), spec) for spec in blocks)
        for blocks in layout.attention
    )


def _visible(spec: Spec) -> tuple[Spec, bool]:
    """What the tensors of a mechanism show of it: options, and whether it has windows."""
    seen = Spec(spec.name, tuple(option for option in spec.options if option[0] not in UNSEEN))
    return seen, bool(dict(spec.options).get("window", 0))


def _own_pattern(layout: Layout, own: str) -> tuple[tuple[Spec, ...], ...] | None:
    """A variant's pattern at the depths of the layout; None if it cannot be stretched to them."""
    try:
        return tuple(tuple(blocks) for blocks in parse_pattern(own, layout.depths))
    except ValueError:
        return None


def _num_heads(layout: Layout, own: Arguments) -> tuple[int, ...]:
    """Heads if they are known; else heads as wide as the variant's."""
    heads = []
    for known, dim, own_dim, own_heads in zip(
        layout.num_heads, layout.embed_dims, own["embed_dims"], own["num_heads"], strict=True
    ):
        wide = own_dim // own_heads
        heads.append(known or (dim // wide if dim % wide == 0 else 1))
    return tuple(heads)


def _sr_ratios(layout: Layout) -> tuple[int, ...] | None:
    """None if every block has the reduction that PVT gives its mechanism by default."""
    usual = tuple(tuple(usual_reduction(i, spec) for spec in blocks) for i, blocks in enumerate(layout.attention))
    return None if layout.reductions == usual else tuple(blocks[0] if blocks else 1 for blocks in layout.reductions)


def _rank(layout: Layout, name: str, kwargs: Arguments) -> tuple[float, ...]:
    """How far a variant is from a layout: arguments of the architecture, widths, depths, other arguments."""
    own = arguments(name)
    widths = sum(abs(a - b) for a, b in zip(layout.embed_dims, own["embed_dims"], strict=True))
    depths = sum(abs(a - b) for a, b in zip(layout.depths, own["depths"], strict=True))
    return len(kwargs.keys() - FREE_ARGS), widths, depths, len(kwargs)
