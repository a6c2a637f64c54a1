"""Which mechanism each block of a model uses.

"inline"                              every block
"inline,inline,softmax,softmax"       one per stage
"inline*2+softmax*16"                 blocks inside a stage; a part without a count fills the rest
["inline", "softmax", ...]            a sequence: one per stage, or one per block, or a sequence for each stage
"""

import re
from collections.abc import Sequence
from itertools import groupby

from sightline.layers.spec import Spec
from sightline.util.errors import InputError

Pattern = str | Sequence[str | Sequence[str]]


def parse_pattern(attention: Pattern, depths: Sequence[int]) -> list[list[Spec]]:
    """The mechanism of every block, stage by stage.

    Example: `parse_pattern("inline,softmax", (1, 2))` gives [[inline], [softmax, softmax]].
    """
    _check_names(attention)
    entries = _split(attention, ",") if isinstance(attention, str) else list(attention)
    if len(entries) == 1:
        entries = entries * len(depths)
    if len(entries) == sum(depths) != len(depths) and all(isinstance(e, str) for e in entries):
        specs = iter([Spec.parse(str(e)) for e in entries])
        return [[next(specs) for _ in range(depth)] for depth in depths]
    if len(entries) != len(depths):
        raise InputError(
            f"attention={attention!r} has {len(entries)} parts; give one for the model, "
            f"{len(depths)} (one per stage) or {sum(depths)} (one per block)"
        )
    return [_stage(entry, depth, attention) for entry, depth in zip(entries, depths, strict=True)]


def format_pattern(pattern: Sequence[Sequence[Spec]]) -> str:
    """The shortest notation of a pattern: equal stages and equal blocks are written once.

    A stage without blocks has the mechanism of the first block of all.
    """
    first = next((blocks[:1] for blocks in pattern if blocks), [Spec("softmax")])
    stages = [_format_stage(blocks or first) for blocks in pattern]
    return stages[0] if len(set(stages)) == 1 and "+" not in stages[0] else ",".join(stages)


def _check_names(attention: object) -> None:
    """A name, a sequence of names, or a sequence of such sequences."""
    for entry in [attention] if isinstance(attention, str) or not isinstance(attention, Sequence) else attention:
        names = [entry] if isinstance(entry, str) or not isinstance(entry, Sequence) else entry
        if not all(isinstance(name, str) for name in names):
            raise InputError(f"attention={attention!r}: give names of mechanisms, as in 'inline,softmax'")


def _stage(entry: str | Sequence[str], depth: int, attention: Pattern) -> list[Spec]:
    """The blocks of one stage."""
    parts = _split(entry, "+") if isinstance(entry, str) else list(entry)
    counts: list[int | None] = []
    specs = []
    for part in parts:
        name, star, count = part.rpartition("*")
        if star and not (count.strip().isdecimal() and len(count) < 10):
            raise InputError(f"attention={attention!r}: {part!r} needs a whole number after *")
        counts.append(int(count) if star else None if isinstance(entry, str) else 1)
        specs.append(Spec.parse(name if star else part))
    fixed = sum(c for c in counts if c is not None)
    open_parts = counts.count(None)
    rest = depth - fixed
    if open_parts > 1 or rest < 0 or (open_parts == 0 and rest != 0):
        raise InputError(
            f"attention={attention!r}: {entry!r} does not add up to the {depth} blocks of its stage; "
            f"write counts that add up, as in 'inline*2+softmax*{max(depth - 2, 1)}'"
        )
    return [spec for spec, count in zip(specs, counts, strict=True) for _ in range(rest if count is None else count)]


def _split(text: str, separator: str) -> list[str]:
    """Split outside brackets."""
    parts, start, inside = [], 0, False
    for match in re.finditer(rf"[()\{separator}]", text):
        if match[0] != separator:
            inside = match[0] == "("
        elif not inside:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _format_stage(blocks: Sequence[Spec]) -> str:
    runs = [(spec, len(list(equal))) for spec, equal in groupby(blocks)]
    return str(runs[0][0]) if len(runs) == 1 else "+".join(f"{spec}*{count}" for spec, count in runs)
