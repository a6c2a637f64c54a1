"""The table of attention mechanisms, and the notation that selects them.

A mechanism is a name, with options in brackets if it has any: `softmax`, `inline(phi=relu,residual=false)`. New
behavior is a new row here.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sightline.layers.core import Core
from sightline.layers.mechanisms.baselines.angular import LinearAngularCore
from sightline.layers.mechanisms.baselines.efficient import EfficientCore
from sightline.layers.mechanisms.baselines.enhanced import EnhancedCore
from sightline.layers.mechanisms.baselines.focused import FocusedCore
from sightline.layers.mechanisms.baselines.hydra import HydraCore
from sightline.layers.mechanisms.baselines.linformer import LinformerCore
from sightline.layers.mechanisms.baselines.nystromformer import NystromformerCore
from sightline.layers.mechanisms.baselines.performer import PerformerCore
from sightline.layers.mechanisms.inline import InlineCore
from sightline.layers.mechanisms.linear import LinearCore
from sightline.layers.mechanisms.none import NoCore
from sightline.layers.mechanisms.soft import SoftCore, SoftNormCore
from sightline.layers.mechanisms.softmax import SoftmaxCore
from sightline.util.errors import InputError
from sightline.util.names import MAX_SIDE, nearest

Option = bool | int | float | str
MOST = {"iterations": 1000}  # of options that are whole numbers; of all others MAX_SIDE


@dataclass(frozen=True)
class Mechanism:
    """A row of the table.

    Args:
        core: the module.
        cost: multiply-adds per head: N tokens, d = head dim, C channels, m landmarks, features or projected keys.
        paper: where it comes from.
        weights: the weight of key j for query i, and the local term.
        use: when to choose it.
        least: the smallest value of an option that is a whole number; 0 for those that are not listed.
    """

    core: type[Core]
    cost: str
    paper: str
    weights: str = ""
    use: str = ""
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Option]:
        """The options of the mechanism with their defaults: the keyword-only arguments of its core."""
        parameters = inspect.signature(self.core.__init__).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def extra_parameters(self) -> int:
        """Parameters of an attention layer beyond those of softmax, in a block of DeiT-Tiny.

        Negative if queries are their own keys and need no projection.
        """
        dim = 192
        with torch.device("meta"):
            own = sum(p.numel() for p in self.core(dim, 6, 16).parameters())
        return own - (dim * dim + dim if self.core.shared_qk else 0)


MECHANISMS: dict[str, Mechanism] = {
    "softmax": Mechanism(
        SoftmaxCore,
        "N^2 d",
        "Attention Is All You Need (2017)",
        "exp(q_i.k_j / sqrt d) / sum_j",
        "the baseline; small maps, windows, public weights",
    ),
    "linear": Mechanism(
        LinearCore,
        "N d^2",
        "Transformers are RNNs (2020)",
        "phi(q_i).phi(k_j) / sum_j",
        "the plain linear baseline",
    ),
    "inline": Mechanism(
        InlineCore,
        "N d^2",
        "Bridging the Divide: Reconsidering Softmax and Linear Attention (2024)",
        "(phi(q_i).phi(k_j) - mean_j) / (N sqrt d) + 1/N;  + 3x3 of v by weights of the image",
        "first choice at high resolution; fused kernels",
    ),
    "soft": Mechanism(
        SoftCore,
        "N m d + m^3",
        "SOFT: Softmax-free Transformer with Linear Complexity (2021)",
        "p_i A^+ p_j, p = exp(-|q - l|^2 / 2) to landmarks l;  + dwconv(v)",
        "Gaussian attention; the SOFT models",
        {"iterations": 1},
    ),
    "soft_norm": Mechanism(
        SoftNormCore,
        "N m d + m^3",
        "Softmax-free Linear Transformers, SOFT++ (2024)",
        "p_i D^-1/2 A^+ D^-1/2 p_j;  + dwconv(v)",
        "SOFT whose weights keep their size; dense tasks",
        {"iterations": 1},
    ),
    "linformer": Mechanism(
        LinformerCore,
        "N m d",
        "Linformer: Self-Attention with Linear Complexity (2020)",
        "softmax over m keys E k of values F v",
        "images of one size; E and F are resampled to others",
        {"rank": 1},
    ),
    "performer": Mechanism(
        PerformerCore,
        "N m d",
        "Rethinking Attention with Performers (2021)",
        "phi(q_i).phi(k_j) / sum_j, phi random with mean product exp(q.k / sqrt d)",
        "estimates softmax with the weights of a softmax model, to within noise",
    ),
    "nystromformer": Mechanism(
        NystromformerCore,
        "N m d + m^3",
        "Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention (2021)",
        "softmax(q l_k) softmax(l_q l_k)^+ softmax(l_q k), l means of segments",
        "approximates softmax with the weights of a softmax model, exact as m tends to N",
        {"landmarks": 1, "iterations": 1},
    ),
    "hydra": Mechanism(
        HydraCore,
        "N d",
        "Hydra Attention: Efficient Attention with Many Heads (2022)",
        "q_ic k_jc / (|q_i| |k_j|) in every channel c",
        "the least cost; one channel per head",
    ),
    "efficient": Mechanism(
        EfficientCore,
        "N d^2",
        "Efficient Attention: Attention with Linear Complexities (2021)",
        "softmax_channels(q_i).softmax_tokens(k)_j",
        "rows sum to one without a quotient",
    ),
    "linear_angular": Mechanism(
        LinearAngularCore,
        "N d^2",
        "Castling-ViT: Linear-Angular Attention (2023)",
        "(1/2 + cos(q_i, k_j) / pi) / sum_j;  + dwconv(v)",
        "smooth positive weights with a local term",
    ),
    "enhanced": Mechanism(
        EnhancedCore,
        "N d^2 + N d C",
        "EfficientViT: Multi-Scale Linear Attention (2023)",
        "relu(q_i).relu(k_j) / sum_j, for the tokens and for aggregated ones",
        "dense tasks that need several scales",
        {"kernel": 1},
    ),
    "focused": Mechanism(
        FocusedCore,
        "N d^2",
        "FLatten Transformer: Focused Linear Attention (2023)",
        "phi(q_i).phi(k_j) / sum_j, phi = |x| x^p / |x^p| of x = relu;  + dwconv(v)",
        "the most accurate of the earlier linear ones in the InLine paper",
        {"power": 1},
    ),
    "none": Mechanism(
        NoCore,
        "0",
        "no attention: values straight to the projection",
        "1 for j = i, else 0",
        "the limit of speed, and a test of what attention brings",
    ),
}


def describe_mechanisms() -> list[dict[str, Any]]:
    """Every mechanism with its options and their defaults, as JSON can hold it."""
    return [
        {
            "name": name,
            "options": mechanism.options,
            "cost": mechanism.cost,
            "extra_params": mechanism.extra_parameters(),
            "windowed": mechanism.core.windowed,
            "weights": mechanism.weights,
            "paper": mechanism.paper,
            "use": mechanism.use,
        }
        for name, mechanism in MECHANISMS.items()
    ]


@dataclass(frozen=True)
class Spec:
    """A mechanism with its options, as written: `str(Spec.parse(text))` is the text again, without spaces."""

    name: str
    options: tuple[tuple[str, Option], ...] = ()

    @classmethod
    def parse(cls, text: "str | Spec") -> "Spec":
        """Read `name` or `name(option=value,...)`. A Spec is returned as it is."""
        if isinstance(text, Spec):
            return text
        name, bracket, rest = text.strip().partition("(")
        name = name.strip()
        if name not in MECHANISMS:
            raise InputError(f"attention={text!r}: no mechanism {name!r}; {nearest(name, MECHANISMS)}")
        if bracket and not rest.rstrip().endswith(")"):
            raise InputError(f"attention={text!r}: the bracket is not closed")
        body = rest.rstrip().removesuffix(")")
        pairs = [part.partition("=") for part in body.split(",") if part.strip()]
        spec = cls(name, tuple((key.strip(), _value(value.strip())) for key, _, value in pairs))
        spec.check()
        return spec

    def check(self) -> None:
        """Reject options that the mechanism does not have, that are given twice, or out of range."""
        known, least = MECHANISMS[self.name].options, MECHANISMS[self.name].least
        for i, (key, value) in enumerate(self.options):
            problem, low = "", least.get(key, 0)
            if key in dict(self.options[:i]):
                problem = f"{key} is given twice"
            elif key not in known:
                problem = f"{self.name} has no option {key!r}; it has {', '.join(known) or 'none'}"
            elif type(value) is not type(known[key]):
                problem = f"{key}={value!r} must be {type(known[key]).__name__}, e.g. {known[key]!r}"
            elif isinstance(value, int) and value < low:
                problem = f"{key}={value}: expected at least {low}"
            elif isinstance(value, int) and value > MOST.get(key, MAX_SIDE):
                problem = f"{key}={value}: expected at most {MOST.get(key, MAX_SIDE)}"
            elif key == "kernel" and isinstance(value, int) and value and value % 2 == 0:
                problem = f"{key}={value}: expected an odd side such as 3" + (", or 0 for none" if low == 0 else "")
            if problem:
                raise InputError(f"attention={self}: {problem}")

    def build(self, dim: int, num_heads: int, stride: int, length: int | None = None) -> Core:
        """The core for `dim` channels in `num_heads` heads.

        Args:
            stride: pixels per token along each side.
            length: for sequences, the largest number of tokens.
        """
        make: Callable[..., Core] = MECHANISMS[self.name].core
        size = (stride,) if length is None else (1, length)
        return make(dim, num_heads, *size, **dict(self.options))

    @property
    def windowed(self) -> bool:
        """Whether it works inside the windows, stripes or reduced maps of its family."""
        return MECHANISMS[self.name].core.windowed

    @property
    def projections(self) -> int:
        """Projections of the tokens: q, k and v, or q and v if queries are their own keys."""
        return 2 if MECHANISMS[self.name].core.shared_qk else 3

    def __str__(self) -> str:
        options = ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in self.options)
        return f"{self.name}({options})" if options else self.name


def _value(text: str) -> Option:
    """A number, true or false; else a word."""
    try:
        return json.loads(text.lower())
    except (ValueError, RecursionError):
        return text
