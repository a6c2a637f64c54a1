"""CPU latency of a model in eager mode, compiled, in onnxruntime and in int8: the table of docs/export.md.

    python tools/measure_export.py [--models inline_deit_tiny,inline_pvt_tiny] [--sizes 224,512,1024] [--threads 2]

Random weights and images, one image at a time, files for one size. Prints the table as Markdown.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import sightline
from sightline.hub.exported import run_file
from sightline.tasks.base import Loaded
from sightline.tasks.preprocess import card_of, make_transform
from sightline.util.provenance import machine_name, source_commit

SECONDS = 5.0
COLUMNS = ("eager", "compiled", "onnxruntime", "onnxruntime int8")


def latency(call: Callable[[Tensor], object], image: Tensor) -> float:
    """Milliseconds of a call, the median over some seconds after two calls."""
    times: list[float] = []
    with torch.no_grad():
        call(image), call(image)
        while sum(times) < SECONDS:
            start = time.perf_counter()
            call(image)
            times.append(time.perf_counter() - start)
    return 1000 * median(times)


def measure(name: str, size: int, folder: Path) -> list[float]:
    """The latencies of `COLUMNS`."""
    torch.manual_seed(0)
    model: nn.Module = sightline.create_model(name, img_size=size).eval()
    image = torch.randn(1, 3, size, size)
    card = card_of(name, {"img_size": size}, model, (), 3, size)
    loaded = Loaded(model, card, make_transform(card), (), folder, "classification")
    photos = folder / "photos"
    photos.mkdir(exist_ok=True)
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{i}.png")
    wide, narrow = folder / "wide.onnx", folder / "int8.onnx"
    sightline.export(loaded, wide, dynamic=(), force=True)
    sightline.export(loaded, narrow, dynamic=(), int8=photos, force=True)
    torch.compiler.reset()
    calls = (model, torch.compile(model, dynamic=False), run_file(wide)[1], run_file(narrow)[1])
    return [latency(call, image) for call in calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="inline_deit_tiny,inline_pvt_tiny")
    parser.add_argument("--sizes", default="224,512,1024")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    commit = (source_commit()[0] or "unknown")[:7]
    print(f"Milliseconds per image, batch 1, {machine_name('cpu')}, torch {torch.__version__}, commit {commit}.\n")
    print(f"| model | size | {' | '.join(COLUMNS)} |\n|---|---:|{'---:|' * len(COLUMNS)}")
    for name in options.models.split(","):
        for size in map(int, options.sizes.split(",")):
            with TemporaryDirectory() as folder:
                row = measure(name, size, Path(folder))
            print(f"| `{name}` | {size} | {' | '.join(f'{value:.1f}' for value in row)} |", flush=True)


if __name__ == "__main__":
    main()
