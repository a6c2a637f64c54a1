"""Writes the generated tables into the documentation: `python docs/make_tables.py` (or `make tables`).

`--check` writes nothing and fails when a table is out of date.
"""

import argparse
import sys
from pathlib import Path

import timm
import torch

import sightline  # noqa: F401  (registers the models)
from sightline.bench import measure_cost
from sightline.models import VARIANTS

ROOT = Path(__file__).resolve().parent.parent


def model_table() -> str:
    """A row a model: what was published beside what is measured."""
    rows = ["| model | size | parameters | FLOPs | top-1 |", "|---|---|---|---|---|"]
    for name, variant in VARIANTS.items():
        with torch.device("meta"):
            model = timm.create_model(name)
        cost = measure_cost(model, (3, variant.size, variant.size))
        top1 = "-" if variant.top1 is None else f"{variant.top1:.1f}"
        rows.append(f"| {name} | {variant.size} | {cost.params / 1e6:.2f} M | {cost.macs / 1e9:.1f} G | {top1} |")
    return "\n".join(rows)


def with_block(text: str, label: str, block: str) -> str:
    """`text` with what stands between the markers of `label` replaced."""
    start, end = f"<!-- {label} -->", f"<!-- /{label} -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    return f"{head}{start}\n{block}\n{end}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    page = ROOT / "README.md"
    old = page.read_text()
    new = with_block(old, "models", model_table())
    if check and new != old:
        print("README.md: the table of models is out of date; run `make tables`", file=sys.stderr)
        return 1
    if new != old:
        page.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
