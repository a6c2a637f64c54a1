"""A model as a graph of torch.export, for any batch and any image size."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sightline.layers.mechanisms.landmarks import Landmarks
from sightline.util.names import MAX_SIDE

AXES = {"batch": 0, "height": 2, "width": 3}
LONG = 1057  # pixels: more than 1,024 tokens (`ops.linear.plan.SHORT`) at a stride of 32
WIDE = 449  # pixels: more than one window of 14 at a stride of 32
STRIDE = 32  # pixels that a token of the last map covers, if the model does not say
PIXELS = 2**23  # of an example on CUDA, for which Inductor chooses the blocks of its kernels: enough to fill a GPU
MOST_IMAGES = 65535  # for more, torch would trace another graph on CUDA
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)


class Graph(nn.Module):
    """What is exported: images (B, C, H, W) in float32 -> a tuple of outputs in float32.

    Args:
        half: in float16, see `in_half`.
        layers: keep linear layers as they are, to quantize them, where a faster form has other products instead.
    """

    def __init__(self, model: nn.Module, half: bool = False, layers: bool = False) -> None:
        super().__init__()
        self.model = in_half(model) if half else with_layers(model) if layers else model
        self.dtype = torch.float16 if half else torch.float32

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        out = self.model(images.to(self.dtype))
        return tuple(x.float() for x in ((out,) if isinstance(out, Tensor) else out))


def least_side(model: nn.Module) -> int:
    """The shortest dynamic side in pixels: to torch.export, a map of one token or landmark is another graph."""
    stride = int(getattr(model, "final_stride", STRIDE))
    return 1 + (max(stride, STRIDE) if any(isinstance(module, Landmarks) for module in model.modules()) else stride)


def trace(graph: Graph, size: Sequence[int], dynamic: Collection[str], device: torch.device) -> ExportedProgram:
    """The graph for images of `size` (channels, height, width), one at a time; `dynamic` axes may have any length.

    Args:
        dynamic: names of `AXES`.
    """
    shape, dims = [1, *size], {}
    # An example that no window, table or stride fits, so that nothing of it gets into the graph; for kernels with so
    # many tokens in every stage that they take the steps which are right for any number.
    least = LONG if device.type == "cuda" else WIDE
    example = {"height": max(2 * size[1] + 1, least), "width": max(2 * size[2] + 33, least + 64)}
    for name, side in example.items():
        if name in dynamic:
            shape[AXES[name]] = side
            dims[AXES[name]] = Dim(name, min=least_side(graph.model), max=MAX_SIDE)
    if "batch" in dynamic:
        shape[0] = max(2, PIXELS // (shape[2] * shape[3])) if device.type == "cuda" else 2
        dims[0] = Dim("batch", min=1, max=MOST_IMAGES)
    images = torch.zeros(shape, device=device)
    with torch.no_grad(), traceable(graph):
        program = torch.export.export(
            graph, (images,), dynamic_shapes=(dims,), strict=False, prefer_deferred_runtime_asserts_over_guards=True
        )
    _drop_asserts(program)
    return program


def _drop_asserts(program: ExportedProgram) -> None:
    """Remove what torch.export asserts about sizes: that no side is one, which decides strides and no value."""
    for node in reversed(list(program.graph.nodes)):
        if node.target is torch.ops.aten._assert_scalar.default:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def with_layers(model: nn.Module) -> nn.Module:
    """A copy whose linear layers are all called: a layer with a hook is part of no other product."""
    model = deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, inputs, output: None)
    return model


def in_half(model: nn.Module) -> nn.Module:
    """A copy in float16 whose norms are in float32; our operators take their sums in float32 in any case."""
    norms = {name: deepcopy(module) for name, module in model.named_modules() if isinstance(module, NORMS)}
    model = deepcopy(model).half()
    for name, norm in norms.items():
        model.set_submodule(name, Wide(norm))
    return model


class Wide(nn.Module):
    """A norm in float32, whatever the dtype of its input."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.float()).to(x.dtype)


@contextmanager
def traceable(model: nn.Module) -> Iterator[None]:
    """Replace pooling to a fixed size, which ONNX has for known sizes only, while the model is traced."""
    pools = {name: module for name, module in model.named_modules() if isinstance(module, nn.AdaptiveAvgPool2d)}
    for name, pool in pools.items():
        model.set_submodule(name, MeanPool(pool.output_size))
    try:
        yield
    finally:
        for name, pool in pools.items():
            model.set_submodule(name, pool)


class MeanPool(nn.Module):
    """`nn.AdaptiveAvgPool2d` as two products with matrices."""

    def __init__(self, size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.size = size if isinstance(size, tuple) else (size, size)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (
            mean_matrix(x.shape[axis], target or x.shape[axis], x.device)
            for axis, target in zip((-2, -1), self.size, strict=True)
        )
        return (rows @ (x.float() @ columns.T)).to(x.dtype)


def mean_matrix(source: int, target: int, device: torch.device | None = None) -> Tensor:
    """(target, source): row i averages from floor(i source / target) to below ceil((i + 1) source / target)."""
    index, part = torch.arange(source, device=device), torch.arange(target, device=device)[:, None]
    inside = (index * target > part * source - target) & (index * target < (part + 1) * source)
    weights = inside.float()
    return weights / weights.sum(1, keepdim=True)
