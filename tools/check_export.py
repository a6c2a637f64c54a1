"""Exported files for any batch and size compared with their models: the table of docs/export.md.

    python tools/check_export.py [--suffix onnx|pt2] [--only "inline_deit_tiny;soft_tiny"] [--out check.json]

One member of each family as published, feature maps of a backbone, and UPerNet, with random weights in float32, at
224x224, 225x320 and 512x512, one image and three. Prints the largest absolute difference at each size; the exit status
is 1 if one is above 1e-4. Rows of other cases that the file has already are kept, with the commit that they are of.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measuring import kept, options_of, write
from torch import Tensor, nn

import sightline
from sightline.hub import exporting
from sightline.hub.exported import run_file
from sightline.hub.trace import AXES
from sightline.tasks.segmentation.config import Model
from sightline.tasks.segmentation.model import Segmenter
from sightline.util.names import format_size
from sightline.util.provenance import machine_name, package_version

SIZES = ((224, 224), (225, 320), (512, 512))
BATCHES = (1, 3)
TOLERANCE = 1e-4
FAMILIES = (
    "inline_deit_tiny", "inline_swin_tiny", "inline_pvt_tiny", "inline_cswin_tiny", "soft_tiny", "soft_norm_tiny",
)  # fmt: skip
CASES: dict[str, Callable[[], nn.Module]] = {
    **{name: (lambda name=name: sightline.create_model(name)) for name in FAMILIES},
    "inline_pvt_tiny, features_only": lambda: sightline.create_model("inline_pvt_tiny", features_only=True),
    "inline_swin_tiny, UPerNet": lambda: Segmenter(Model(name="inline_swin_tiny"), 150),
}


@torch.no_grad()
def randomized(model: nn.Module) -> nn.Module:
    """The model with weights that all matter: new models have zeros in biases, and positions that are nearly zero."""
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "pos_embed" in name or "position_bias" in name:
            weight.normal_(std=0.5)
        elif weight.ndim == 1:
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model.eval()


def difference(model: nn.Module, made: nn.Module, images: Tensor) -> float:
    """The largest of all outputs; infinite if their shapes are others."""
    with torch.no_grad():
        want, got = model(images), made(images)
    pairs = [(want, got)] if isinstance(want, Tensor) else list(zip(want, got, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max((a - b).abs().max().item() for a, b in pairs)


def check(name: str, suffix: str, folder: Path) -> dict[str, Any]:
    """Export a case and compare it at every size and batch."""
    model, start = randomized(CASES[name]()), time.perf_counter()
    done = sightline.export(model, folder / f"model.{suffix}", dynamic=tuple(AXES))
    seconds, size = time.perf_counter() - start, done.target.stat().st_size
    made = run_file(done.target)[1]
    rows = [
        {"height": h, "width": w, "batch": batch, "difference": difference(model, made, torch.randn(batch, 3, h, w))}
        for h, w in SIZES
        for batch in BATCHES
    ]
    return {"case": name, "suffix": suffix, "opset": done.opset, "mb": size / 1e6, "seconds": seconds, "checks": rows}


def main() -> int:
    parser = options_of(__doc__, 0, 0)
    parser.add_argument("--suffix", choices=("onnx", "pt2"), default="onnx")
    parser.add_argument("--only", help="cases separated by ';'; by default all")
    options = parser.parse_args()
    print(f"{'':34}{''.join(f'{format_size(size):>10}' for size in SIZES)}{'MB':>8}{'s':>6}", flush=True)
    rows = kept(options.out)
    exporting.SECONDS = 0.0  # latency is measured by measure_export.py
    for name in options.only.split(";") if options.only else CASES:
        with TemporaryDirectory() as folder:
            row = check(name, options.suffix, Path(folder))
        rows = [other for other in rows if (other["case"], other["suffix"]) != (name, options.suffix)] + [row]
        worst = [max(c["difference"] for c in row["checks"] if (c["height"], c["width"]) == size) for size in SIZES]
        cells = "".join(f"{value:>10.1e}" for value in worst)
        print(f"{name:34}{cells}{row['mb']:>8.1f}{row['seconds']:>6.0f}", flush=True)
    packages = {name: package_version(name) for name in ("onnx", "onnxscript", "onnxruntime")}
    rows.sort(key=lambda row: (list(CASES).index(row["case"]), row["suffix"]))
    facts = {"machine": machine_name("cpu"), "tolerance": TOLERANCE, **packages}
    write(options.out, __file__, rows, torch.device("cpu"), **facts)
    return int(any(not c["difference"] <= TOLERANCE for row in rows for c in row["checks"]))


if __name__ == "__main__":
    sys.exit(main())
