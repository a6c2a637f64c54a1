"""`sightline list`: list the registered models, or the attention mechanisms."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sightline.cli.options import Command, option, positional
from sightline.cli.output import Column, number, print_json, show
from sightline.util.errors import InputError
from sightline.util.names import nearest
from sightline.util.text import say

Row = dict[str, Any]  # of the table, as JSON has it

COLUMNS = (
    Column("name"), number("size"), number("params M"), number("FLOPs G, published"), number("top-1"),
    Column("weights"), Column("dims / heads / depths", wide=True), Column("attention", wide=True), Column("family"),
)  # fmt: skip
DIGITS = {"params_m": 2, "flops_g": 1, "top1": 1}
ATTENTION_COLUMNS = (
    Column("name"), Column("options"), Column("cost"), number("extra params"), Column("where", wide=True),
    Column("paper", wide=True),
)  # fmt: skip
ATTENTION_NOTES = (
    "Cost: multiply-adds of a head; N tokens, d = head dim, C channels, m landmarks, features or projected keys.",
    "Extra params: beyond softmax, in a block of DeiT-Tiny (192 channels, 6 heads), at the options shown.",
    "phi of linear and inline: identity, relu, leaky_relu, elu1, exp, relu_affine. --json has formulas and when to use "
    "each.",
)


@dataclass(frozen=True)
class Options:
    """List the registered models, with parameters, multiply-adds and ImageNet-1K top-1 as published.

    Weights: whether they are published; `sightline download` and `pretrained=True` get them.
    """

    pattern: str | None = positional("only names that match, such as '*swin*'", optional=True)
    attention: bool = option("list the attention mechanisms instead", default=False)
    json: bool = option("print JSON", default=False)


def run(options: Options) -> None:
    """Print the table of models or of mechanisms."""
    from sightline.layers.spec import describe_mechanisms
    from sightline.models.factory import describe_models

    pattern = "*" if options.pattern is None else options.pattern
    known = describe_mechanisms() if options.attention else describe_models()
    rows = [row for row in known if fnmatchcase(row["name"], pattern)]
    if not rows:
        names = [row["name"] for row in known]
        parts = sorted({f"*{part}*" for name in names for part in name.split("_")})
        remedy = nearest(pattern, names, nearest(pattern, parts, "omit the pattern to list all"))
        raise InputError(f"no name matches {pattern!r}; {remedy}")
    if options.json:
        print_json(rows)
    elif options.attention:
        show(ATTENTION_COLUMNS, [_mechanism_cells(row) for row in rows])
        say("", *ATTENTION_NOTES)
    else:
        show(COLUMNS, [_model_cells(row) for row in rows])


def _model_cells(row: Row) -> list[str]:
    numbers = ("-" if row[key] is None else f"{row[key]:.{digits}f}" for key, digits in DIGITS.items())
    sizes = " / ".join("-".join(map(str, row[key])) for key in ("embed_dims", "num_heads", "depths"))
    weights = row["weights"] or "-"
    weights = "yes" if "://" in weights else weights
    return [row["name"], str(row["img_size"]), *numbers, weights, sizes, row["attention"], row["family"]]


def _mechanism_cells(row: Row) -> list[str]:
    from sightline.layers.spec import Spec

    where = "windows, stripes" if row["windowed"] else "whole map"
    text = str(Spec("", tuple(row["options"].items())))[1:-1].replace(",", ", ")
    return [row["name"], text or "-", row["cost"], f"{row['extra_params']:,}", where, row["paper"]]


COMMAND = Command(
    Options,
    run,
    help="list the registered models, or the attention mechanisms",
    examples=(
        "  sightline list '*swin*'\n"
        "  sightline list --json\n"
        "  sightline list --attention\n"
        "  sightline list --attention '*former' --json"
    ),
)
