"""The table of attention mechanisms, and the notation that selects them.

A mechanism is a name, with options in brackets where it has any: `softmax`, `inline(phi=relu,residual=false)`. New
behaviour is a new row here.
"""

import inspect
from dataclasses import dataclass
from difflib import get_close_matches

from sightline.layers.core import Core
from sightline.layers.inline import InlineCore
from sightline.layers.linear import LinearCore
from sightline.layers.none import NoCore
from sightline.layers.soft import SoftCore, SoftNormCore
from sightline.layers.softmax import SoftmaxCore

Option = bool | int | float | str


@dataclass(frozen=True)
class Mechanism:
    """A row of the table: the core, what it costs for N tokens, d = head dim, m landmarks, and where it comes from."""

    core: type[Core]
    cost: str
    paper: str

    @property
    def options(self) -> dict[str, Option]:
        """The options of the mechanism with their defaults: the keyword-only arguments of its core."""
        parameters = inspect.signature(self.core.__init__).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


MECHANISMS: dict[str, Mechanism] = {
    "softmax": Mechanism(SoftmaxCore, "N^2 d", "Attention Is All You Need (2017)"),
    "linear": Mechanism(LinearCore, "N d^2", "Transformers are RNNs (2020)"),
    "inline": Mechanism(InlineCore, "N d^2", "Bridging the Divide: Reconsidering Softmax and Linear Attention (2024)"),
    "soft": Mechanism(SoftCore, "N m d + m^3", "SOFT: Softmax-free Transformer with Linear Complexity (2021)"),
    "soft_norm": Mechanism(SoftNormCore, "N m d + m^3", "Softmax-free Linear Transformers, SOFT++ (2024)"),
    "none": Mechanism(NoCore, "0", "no attention: values straight to the projection"),
}


@dataclass(frozen=True)
class Spec:
    """A mechanism with its options, as written: `str(Spec.parse(text))` is the text again, without spaces."""

    name: str
    options: tuple[tuple[str, Option], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """Read `name` or `name(option=value,...)`."""
        name, bracket, rest = text.strip().partition("(")
        name = name.strip()
        if name not in MECHANISMS:
            near = get_close_matches(name, MECHANISMS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(f"attention={text!r}: no mechanism {name!r}{hint} There are: {', '.join(MECHANISMS)}")
        if bracket and not rest.rstrip().endswith(")"):
            raise ValueError(f"attention={text!r}: the bracket is not closed")
        body = rest.rstrip().removesuffix(")")
        pairs = [part.partition("=") for part in body.split(",") if part.strip()]
        spec = cls(name, tuple((key.strip(), _value(value.strip())) for key, _, value in pairs))
        spec.check()
        return spec

    def check(self) -> None:
        """Refuse options that the mechanism does not have, or that are given twice."""
        known = MECHANISMS[self.name].options
        for i, (key, value) in enumerate(self.options):
            if key in dict(self.options[:i]):
                raise ValueError(f"attention={self}: {key} is given twice")
            if key not in known:
                raise ValueError(
                    f"attention={self}: {self.name} has no option {key!r}; it has {', '.join(known) or 'none'}"
                )
            if type(value) is not type(known[key]):
                raise ValueError(
                    f"attention={self}: {key}={value!r} should be {type(known[key]).__name__}, such as {known[key]!r}"
                )

    def build(self, dim: int, num_heads: int, stride: int) -> Core:
        """The core for `dim` channels in `num_heads` heads, on tokens of `stride` pixels."""
        return MECHANISMS[self.name].core(dim, num_heads, stride, **dict(self.options))

    @property
    def windowed(self) -> bool:
        """Whether it keeps to the windows, stripes or reduced maps of its family."""
        return MECHANISMS[self.name].core.windowed

    @property
    def projections(self) -> int:
        """How many projections of the tokens it takes: q, k and v, or q and v where queries are their own keys."""
        return 2 if MECHANISMS[self.name].core.shared_qk else 3

    def __str__(self) -> str:
        options = ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in self.options)
        return f"{self.name}({options})" if options else self.name


def _value(text: str) -> Option:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
