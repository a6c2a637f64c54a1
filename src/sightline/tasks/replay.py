"""Repeated forward passes on a GPU as CUDA graphs, which cost the host one launch: for evaluation and prediction.

The rule, in one place: a batch shape runs eagerly `EAGER` times; then it is captured, which takes as long as a few
passes, and replayed. So a few images run eagerly, and so do shapes beyond the first `SHAPES`, inputs that are not one
tensor (detection), and everything, with one line about it, if a capture fails. Compiling is left to training: it takes
longer than most evaluations.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from sightline.util.text import one_line, say

EAGER = 8  # passes of a shape before it is captured
SHAPES = 4  # that are captured; each keeps its memory
Pass = Callable[[Tensor], Any]


def replayed(model: nn.Module, device: torch.device) -> nn.Module:
    """`model`, on a CUDA device with replays; its weights must then stay where they are."""
    return Replayed(model.to(device)) if device.type == "cuda" else model.to(device)


class Replayed(nn.Module):
    """A model whose forward passes without gradients are captured once their shape has come often.

    Args:
        model: everything but the forward pass is left to it.
        capture: makes a function that replays the model for inputs of the shape of one input.
    """

    def __init__(self, model: nn.Module, capture: Callable[[Pass, Tensor], Pass] | None = None) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)
        self.capture: Callable[[Pass, Tensor], Pass] = capture or capture_graph
        self.graphs: dict[Hashable, Pass] = {}
        self.seen: Counter[Hashable] = Counter()
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        x = inputs[0] if len(inputs) == 1 and not options else None
        if self.failed or self.training or not isinstance(x, Tensor) or torch.is_grad_enabled():
            return self.model(*inputs, **options)
        key = (x.shape, x.stride(), x.dtype, torch.is_inference_mode_enabled(), *_autocast())
        if key not in self.graphs:
            self.seen[key] += 1
            if self.seen[key] <= EAGER or len(self.graphs) >= SHAPES:
                return self.model(x)
            try:
                self.graphs[key] = self.capture(self.model, x)
            # torch's error of an operation that waits for the device, or of memory. A model's own mistakes are others.
            except RuntimeError as error:
                self.failed = True
                self.graphs.clear()
                say(f"no CUDA graph ({one_line(error, 160)}); predicting in eager mode", file=sys.stderr)
                return self.model(x)
        return self.graphs[key](x)


def capture_graph(model: Pass, x: Tensor) -> Pass:
    """A CUDA graph of `model` at the shape of `x`, as a function that copies its input in and its output out."""
    enabled, dtype = _autocast()
    fixed = x.clone(memory_format=torch.preserve_format)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    # Without autocast's cache of weights, which would be freed while the graph still reads it.
    with torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=False):
        with torch.cuda.stream(side):
            model(fixed)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # loaders pin memory meanwhile
            out = model(fixed)
    if not isinstance(out, Tensor):
        raise RuntimeError(f"the model returns no tensor but {type(out).__name__}")

    def replay(given: Tensor) -> Tensor:
        fixed.copy_(given)
        graph.replay()
        return out.clone()

    return replay


def _autocast() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
