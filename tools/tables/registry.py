"""Tables of what the library has: models and mechanisms."""

import timm
import torch

import sightline  # noqa: F401  (registers the models)
from sightline.bench import measure_cost
from sightline.layers import MECHANISMS, Spec
from sightline.models import VARIANTS


def model_table() -> str:
    """One row per model: published and measured figures."""
    rows = ["| model | size | parameters | FLOPs, measured | top-1, published |", "|---|---|---|---|---|"]
    for name, variant in VARIANTS.items():
        with torch.device("meta"):
            model = timm.create_model(name)
        cost = measure_cost(model, (3, variant.size, variant.size))
        top1 = "-" if variant.top1 is None else f"{variant.top1:.1f}"
        rows.append(f"| {name} | {variant.size} | {cost.params / 1e6:.2f} M | {cost.macs / 1e9:.1f} G | {top1} |")
    return "\n".join(rows)


def mechanism_table() -> str:
    """One row per mechanism in the registry."""
    rows = ["| name and options | weight of key j for query i | cost | extra parameters | paper | when to use |",
            "|---|---|---|---:|---|---|"]  # fmt: skip
    for name, found in MECHANISMS.items():
        cells = (
            f"`{Spec(name, tuple(found.options.items()))}`",
            f"`{found.weights}`",
            f"`{found.cost}`",
            f"{found.extra_parameters():,}",
            found.paper,
            found.use,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
