"""CPU latency of a model in eager mode, compiled, in onnxruntime and in int8: the table of docs/export.md.

    python tools/measure_export.py [--models inline_deit_tiny,inline_pvt_tiny] [--sizes 224,512,1024] [--threads 2]
                                   [--seconds 3] [--clock cpu] [--out latency.json]

Random weights and images, one image at a time, files for one size. The four take turns, so that what else runs on the
machine slows down all of them; the table has the fastest round of each. Rows of other models and sizes that the file
has already are kept, with the commit that they are of. On a machine that is in use, `--clock cpu --threads 1` counts
the time of the processor that the call took, which others hardly change.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from measuring import kept, options_of, write
from PIL import Image
from torch import Tensor, nn

import sightline
from sightline.hub import exporting
from sightline.hub.exported import run_file
from sightline.tasks.base import Loaded
from sightline.tasks.preprocess import card_of, make_transform
from sightline.util.provenance import machine_name, package_version

ROUNDS = 5
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
KINDS = ("eager", "compiled", "onnxruntime", "int8")


def variants(name: str, size: int, folder: Path) -> dict[str, Callable[[Tensor], object]]:
    """A model with random weights in all `KINDS`."""
    torch.manual_seed(0)
    model: nn.Module = sightline.create_model(name, img_size=size).eval()
    card = card_of(name, {"img_size": size}, model, (), 3, size)
    loaded = Loaded(model, card, make_transform(card), (), folder, "classification")
    photos = folder / "photos"
    photos.mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{i}.png")
    wide, narrow = folder / "wide.onnx", folder / "int8.onnx"
    sightline.export(loaded, wide, dynamic=())
    sightline.export(loaded, narrow, dynamic=(), int8=photos)
    torch.compiler.reset()
    calls = (model, torch.compile(model, dynamic=False), run_file(wide)[1], run_file(narrow)[1])
    return dict(zip(KINDS, calls, strict=True))


def latency(call: Callable[[Tensor], object], image: Tensor, seconds: float, clock: Callable[[], float]) -> float:
    """Milliseconds of a call, the median over some seconds."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = clock()
        call(image)
        times.append(clock() - start)
    return 1000 * median(times)


@torch.no_grad()
def measure(name: str, size: int, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """The latencies of all `KINDS` in every round, in turns after a call of each."""
    image, share = torch.randn(1, 3, size, size), seconds / ROUNDS
    with TemporaryDirectory() as folder:
        calls = variants(name, size, Path(folder))
        for call in calls.values():
            call(image)
        rounds = [{kind: latency(call, image, share, clock) for kind, call in calls.items()} for _ in range(ROUNDS)]
    return {"model": name, "size": size, "ms": {kind: [found[kind] for found in rounds] for kind in KINDS}}


def main() -> None:
    parser = options_of(__doc__, 3.0, 0)
    parser.add_argument("--models", default="inline_deit_tiny,inline_pvt_tiny")
    parser.add_argument("--sizes", default="224,512,1024")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    exporting.SECONDS = 0.0
    rows = kept(options.out)
    facts = {"machine": machine_name("cpu"), "clock": options.clock, "onnxruntime": package_version("onnxruntime")}
    print(f"{'milliseconds':24}{''.join(f'{kind:>14}' for kind in KINDS)}", flush=True)
    for name in options.models.split(","):
        for size in map(int, options.sizes.split(",")):
            row = measure(name, size, options.seconds, CLOCKS[options.clock])
            rows = [other for other in rows if (other["model"], other["size"]) != (name, size)] + [row]
            fastest = "".join(f"{min(found):>14.1f}" for found in row["ms"].values())
            print(f"{name:18}{size:>6}{fastest}", flush=True)
            rows.sort(key=lambda row: (row["model"], row["size"]))
            write(options.out, __file__, rows, torch.device("cpu"), **facts)


if __name__ == "__main__":
    main()
