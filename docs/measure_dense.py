"""What dense models cost: time and peak memory by image size, beside a softmax twin of the same backbone.

    python docs/measure_dense.py --out cost.json                        # on a GPU
    python docs/measure_dense.py --device cpu --sizes 64 --repeats 1    # a look at whether it runs

UPerNet with 150 classes is measured at squares and at 512 x 2048, Mask R-CNN with 80 at 800 x 1280; forward in
evaluation mode and, for UPerNet, a training step of two images as well. Memory is the peak of what torch holds, without
what was there before.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import sightline  # noqa: F401
from sightline.engine.run_folder import versions
from sightline.tasks.detection import config as detection
from sightline.tasks.detection.model import Detector
from sightline.tasks.segmentation import config as segmentation
from sightline.tasks.segmentation.model import Segmenter

BACKBONES = ("inline_swin_tiny", "inline_pvt_tiny", "inline_deit_tiny", "soft_norm_tiny")


def measure(call: Callable[[], Any], device: torch.device, repeats: int) -> dict[str, float | None]:
    """Milliseconds of the fastest of `repeats` calls after one, and the peak memory in MiB (None on a CPU)."""
    gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated() if gpu else 0
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats + 1):
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20 if gpu else None
    return {"ms": 1e3 * min(times[1:]), "peak_mib": memory}


def cases(name: str, sizes: list[tuple[int, int]], device: torch.device) -> Iterator[tuple[dict[str, Any], Any]]:
    """What is measured for a backbone, and the call that does it."""
    for twin in (False, True):
        args = {"attention": "softmax"} if twin else {}
        facts = {"backbone": name, "attention": "softmax" if twin else "own"}
        segmenter = Segmenter(segmentation.Model(name=name, args=args), 150).to(device)
        for height, width in sizes:
            for mode in ("forward", "training step"):
                x = torch.randn(2 if mode == "training step" else 1, 3, height, width, device=device)
                yield (
                    {**facts, "head": "upernet", "height": height, "width": width, "mode": mode},
                    _call(segmenter, x, mode),
                )
        detector = Detector(detection.Model(name=name, args=args), 80, detection.Inference()).to(device).eval()
        height, width = (800, 1280) if device.type == "cuda" else sizes[0]
        image = torch.randn(3, height, width, device=device)
        yield (
            {**facts, "head": "mask_rcnn", "height": height, "width": width, "mode": "forward"},
            _call(detector, [image], "forward"),
        )


def _call(model: Any, x: Any, mode: str) -> Callable[[], None]:
    device = next(model.parameters()).device

    def forward() -> None:
        model.eval()
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            model(x)

    def step() -> None:
        model.train()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(x)[0].float().square().mean()
        loss.backward()
        model.zero_grad()

    return forward if mode == "forward" else step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file; by default only printed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backbones", default=",".join(BACKBONES))
    parser.add_argument("--sizes", default="512,1024,2048,512x2048", help="sides of squares, or height x width")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    device = torch.device(options.device)
    sides = [[int(part) for part in text.split("x")] for text in options.sizes.split(",")]
    rows = []
    for name in options.backbones.split(","):
        for facts, call in cases(name, [(side[0], side[-1]) for side in sides], device):
            try:
                cost: dict[str, Any] = measure(call, device, options.repeats)
            except torch.OutOfMemoryError:
                cost = {"ms": None, "peak_mib": None, "error": "out of memory"}
            rows.append({**facts, **cost})
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"versions": versions(str(device)), "rows": rows}, file, indent=1)
        print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
