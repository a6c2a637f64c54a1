"""Accuracy of a trained run before and after export: a table of docs/export.md.

    python tools/measure_accuracy.py [--run runs/quick] [--out accuracy.json]

Without `--run`, trains the quick recipe first. The run, its ONNX file, its package for any batch, its files in half
precision and in int8 (calibrated with 100 training images) are evaluated on the 2,000 test images of the embedded data.
"""

import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measuring import options_of, write

import sightline
from sightline.data.embedded import embedded
from sightline.hub import exporting
from sightline.util.provenance import machine_name, package_version

CALIBRATION = 100  # images


def training_images(folder: Path) -> Path:
    """A folder with some of all classes for calibration."""
    with tarfile.open(embedded() / "train.tar") as archive:
        members = [member for member in archive if member.isfile()]
        archive.extractall(folder, members[:: len(members) // CALIBRATION][:CALIBRATION], filter="data")
    return folder


def main() -> None:
    parser = options_of(__doc__, 0, 0)
    parser.add_argument("--run", type=Path, help="a run folder of the recipe quick")
    options = parser.parse_args()
    exporting.SECONDS = 0.0  # latency is measured by measure_export.py
    with TemporaryDirectory() as made:
        folder = Path(made)
        run = options.run or sightline.train("quick", out=folder / "run").folder
        files: dict[str, tuple[str, dict[str, Any]]] = {
            "ONNX": ("model.onnx", {}),
            "package": ("model.pt2", {}),
            "ONNX, --half": ("half.onnx", {"half": True}),
            "ONNX, --int8 FOLDER": ("int8.onnx", {"int8": training_images(folder / "images")}),
        }
        rows = [score("the run", run)]
        for label, (name, given) in files.items():
            rows.append(score(label, sightline.export(run, folder / name, **given).target))
    about = "The run is `sightline train`, the quick recipe"
    note = f"{about}; int8 is calibrated with {CALIBRATION} of its training images."
    facts = {"machine": machine_name("cpu"), "onnxruntime": package_version("onnxruntime"), "note": note}
    write(options.out, __file__, rows, torch.device("cpu"), **facts)


def score(label: str, file: Path) -> dict[str, Any]:
    """Evaluate a run or a file."""
    found = sightline.evaluate(file, embedded(), device="cpu", workers=0)
    row = {"file": label, "images": found.images, **{key: found[key] for key in ("top1", "top5", "loss")}}
    print(f"{label:28}{row['top1']:>8.2f}{row['top5']:>8.2f}{row['loss']:>9.4f}", flush=True)
    return row


if __name__ == "__main__":
    main()
