"""The notation that selects an attention mechanism.

A mechanism is a name, with options in brackets if it has any: `softmax`, `inline(phi=relu,residual=false)`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from sightline.layers.core import Core
from sightline.layers.table import MECHANISMS, Mechanism, Option, describe_mechanisms
from sightline.util.errors import InputError
from sightline.util.names import MAX_SIDE, nearest

__all__ = ["MECHANISMS", "Mechanism", "Option", "Spec", "describe_mechanisms"]

# Of options that are whole numbers, of all others MAX_SIDE: attention in a file must not take all memory.
MOST = {"iterations": 1000, "landmarks": 1024, "agents": 1024, "window": 64}


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
