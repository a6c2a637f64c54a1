"""Time and peak memory of dense models by image size, next to a softmax twin of the same backbone.

    python tools/measure_dense.py --out cost.json                        # on a GPU, about two minutes
    python tools/measure_dense.py --device cpu --sizes 64 --seconds 0    # a smoke test

UPerNet with 150 classes is measured at squares and at 512 x 2048, Mask R-CNN with 80 at 800 x 1280: forward of one
image in evaluation mode and, for UPerNet at squares, forward and backward of two. SOFT++ is measured with landmarks 32
pixels apart, as published, and with 49 of them at any size. Weights are random, and Mask R-CNN keeps no
boxes, so its mask head does not run. Memory is the peak allocated by torch beyond what was allocated before.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from measuring import Budget, measure, options_of, write

import sightline  # noqa: F401  (registers the models)
from sightline.tasks.detection import config as detection
from sightline.tasks.detection.model import Detector
from sightline.tasks.segmentation import config as segmentation
from sightline.tasks.segmentation.model import Segmenter

BACKBONES = ("inline_swin_tiny", "inline_pvt_tiny", "inline_deit_tiny", "soft_norm_tiny")
OTHERS = {"soft_norm_tiny": ("soft_norm(landmarks=49)",)}  # attention besides the backbone's own and softmax
DETECTION = (800, 1280)


def cases(name: str, sizes: list[tuple[int, int]], device: torch.device) -> Iterator[tuple[dict[str, Any], Any]]:
    """What is measured for a backbone, and the call that does it."""
    for attention in _attentions(name):
        args = {} if attention == "own" else {"attention": attention}
        facts = {"backbone": name, "attention": attention}
        segmenter = Segmenter(segmentation.Model(name=name, args=args), 150).to(device)
        for height, width in sizes:
            for mode in _modes(height, width):
                x = torch.randn(1 if mode == "forward" else 2, 3, height, width, device=device)
                yield (
                    {**facts, "head": "upernet", "height": height, "width": width, "mode": mode},
                    _call(segmenter, x, mode),
                )
        nothing = detection.Inference(score=1.0)  # otherwise the work would depend on the boxes of random weights
        detector = Detector(detection.Model(name=name, args=args), 80, nothing).to(device).eval()
        height, width = DETECTION if device.type == "cuda" else sizes[0]
        image = torch.randn(3, height, width, device=device)
        yield (
            {**facts, "head": "mask_rcnn", "height": height, "width": width, "mode": "forward"},
            _call(detector, [image], "forward"),
        )


def _attentions(name: str) -> tuple[str, ...]:
    return "own", *OTHERS.get(name, ()), "softmax"


def _modes(height: int, width: int) -> tuple[str, ...]:
    return ("forward", "training step") if height == width else ("forward",)


def _call(model: Any, x: Any, mode: str) -> Callable[[], None]:
    device = next(model.parameters()).device

    def forward() -> None:
        model.eval()
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            model(x)

    def step() -> None:
        model.train()
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(x)[0].float().square().mean()
            loss.backward()
        finally:
            model.zero_grad()  # also after running out of memory

    return forward if mode == "forward" else step


def main() -> None:
    parser = options_of(__doc__, seconds=1.0, total=120.0)
    parser.add_argument("--backbones", default=",".join(BACKBONES))
    parser.add_argument("--sizes", default="512,1024,2048,512x2048", help="sides of squares, or height x width")
    options = parser.parse_args()
    device, names = torch.device(options.device), options.backbones.split(",")
    sides = [[int(part) for part in text.split("x")] for text in options.sizes.split(",")]
    sizes = [(side[0], side[-1]) for side in sides]
    count = sum(len(_attentions(name)) for name in names) * (sum(len(_modes(*size)) for size in sizes) + 1)
    budget = Budget(count, options.seconds, options.budget)
    torch.manual_seed(0)
    rows = []
    for name in names:
        for facts, call in cases(name, sizes, device):
            rows.append({**facts, **measure(call, device, budget.share())})
            print(json.dumps(rows[-1]), flush=True)
            write(options.out, __file__, rows, device)  # after every case, so that no measurement is lost
    print(f"wrote {options.out}" if options.out else "give --out to keep this")


if __name__ == "__main__":
    main()
