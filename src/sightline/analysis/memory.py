"""Peak memory against the number of tokens (SOFT's Fig. 1b): 12 blocks, width 384, 12 heads, 49 landmarks, batch 1.

On CUDA the peak of the allocator is read. On a CPU the operators run on tensors without data, and the bytes of all that
are alive at once are counted: exact for what torch allocates as tensors, without the scratch space inside a kernel, and
as fast at 6,272 tokens as at 784.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sightline.analysis.figures import draw_lines, finish, new_figure
from sightline.analysis.study import Facts, Study
from sightline.layers.attention import Attention
from sightline.layers.blocks import PreNormBlock
from sightline.layers.core import Grid, Place
from sightline.layers.mechanisms.softmax import SoftmaxCore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCKS, WIDTH, HEADS, SIDE = 12, 384, 12, 28  # N = 784 p tokens on a map of 28 x 28 p
MATRIX = "softmax, matrix in memory"
# The five methods by their mechanism; torch's softmax does not keep the matrix that the paper's kept.
METHODS = {
    MATRIX: "softmax",
    "softmax": "softmax",
    "linformer": "linformer(rank=49)",
    "performer": "performer",
    "nystromformer": "nystromformer(landmarks=49)",
    "soft": "soft(landmarks=49)",
}
MODES = ("forward", "forward+backward")
MIB = 2**20


@dataclass(frozen=True)
class Peak:
    """The peak of one method at one length: bytes with the weights, or None if it ran out of memory."""

    method: str
    mechanism: str
    tokens: int
    mode: str
    peak: int | None
    weights: int


class MatrixSoftmax(SoftmaxCore):
    """Softmax attention that keeps its N x N matrix, as the Transformer of the paper did."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) * self.head_dim**-0.5
        return torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, and the most there were at once.

    Example:
        with LiveBytes() as live:
            model(x)
        live.peak
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.add(out)
        return out

    def add(self, tensors: object) -> None:
        """Count the storages of tensors, each once."""
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor)):
            key, size = storage._cdata, storage.nbytes()
            if key not in self._known:
                self._known[key] = size
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.now -= self._known.pop(key)


class Stack(nn.Module):
    """Blocks of one width on tokens (B, N, C), nothing before and nothing after."""

    def __init__(self, method: str, mechanism: str) -> None:
        super().__init__()
        attention = [Attention(WIDTH, HEADS, mechanism, stride=8) for _ in range(BLOCKS)]
        if method == MATRIX:
            for each in attention:
                each.core = MatrixSoftmax(WIDTH, HEADS)
        self.blocks = nn.ModuleList(PreNormBlock(WIDTH, each) for each in attention)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        for block in self.blocks:
            x = block(x, grid)
        return x


def measure_peak(method: str, mechanism: str, factor: int, mode: str, device: torch.device | str = "cpu") -> Peak:
    """The peak of a stack of blocks at 784 `factor` tokens."""
    device, grid = torch.device(device), (SIDE, SIDE * factor)
    counted = device.type != "cuda"
    with FakeTensorMode(allow_non_fake_inputs=True) if counted else nullcontext():
        with device:
            stack = Stack(method, mechanism)
        x = torch.empty(1, grid[0] * grid[1], WIDTH, device=device)
        weights = sum(p.numel() * p.element_size() for p in stack.parameters())

        def run() -> None:
            with torch.set_grad_enabled(mode != "forward"):
                out = stack(x, grid)
                if mode != "forward":
                    out.sum().backward()

        peak = _count(run, stack, x) if counted else _allocated(run, device)
    return Peak(method, mechanism, x.shape[1], mode, peak, weights)


def _count(run: Callable[[], None], stack: nn.Module, x: Tensor) -> int:
    with LiveBytes() as live:
        live.add([*stack.parameters(), *stack.buffers(), x])
        run()
    return live.peak


def _allocated(run: Callable[[], None], device: torch.device) -> int | None:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run()
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated(device)


def study_memory(
    factors: Sequence[int] = range(1, 9),
    methods: Mapping[str, str] = METHODS,
    device: torch.device | str = "cpu",
    tick: Callable[[str], None] = lambda _: None,
) -> Study:
    """The peak of every method at 784 p tokens for every p in `factors`, without and with the backward pass."""
    found: list[Peak] = []
    for method, mechanism in methods.items():
        for p in factors:
            found += [measure_peak(method, mechanism, p, mode, device) for mode in MODES]
            tick(f"{method}, {784 * p} tokens")
    tokens = [784 * p for p in factors]
    series = {
        (method, mode): [peak for peak in found if (peak.method, peak.mode) == (method, mode)]
        for mode in MODES
        for method in methods
    }
    how, explained = (
        ("allocated", "Measured: the peak of the CUDA allocator, weights included.")
        if torch.device(device).type == "cuda"
        else ("counted", "Counted: bytes of all tensors that are alive at once, weights included, by running the "
              "operators on tensors without data; scratch space inside kernels is not in it.")
    )  # fmt: skip
    facts: Facts = {
        "blocks": BLOCKS, "width": WIDTH, "heads": HEADS, "batch": 1, "landmarks": 49, "dtype": "float32", "how": how,
        "peaks": [vars(peak) for peak in found],
    }  # fmt: skip
    return Study(
        "memory", "Peak memory against sequence length (SOFT, Fig. 1b)", facts, {"memory": _figure(series, tokens)},
        ("method", "mode", *(f"{count} tokens" for count in tokens)),
        [[*key, *("-" if each.peak is None else f"{each.peak / MIB:,.0f}" for each in peaks)]
         for key, peaks in series.items()],
        [f"MiB. {BLOCKS} blocks of width {WIDTH} with {HEADS} heads, batch 1, float32. {explained} Softmax keeps its "
         "matrix in the paper's figure; torch's own does not."],
    )  # fmt: skip


def _figure(series: Mapping[tuple[str, str], Sequence[Peak]], tokens: Sequence[int]) -> "Figure":
    """A panel per mode, both axes logarithmic."""
    figure = new_figure(11, 4.2)
    for axis, mode in zip(figure.subplots(1, 2), MODES, strict=True):
        curves = {}
        for (method, of), peaks in series.items():
            known = [(each.tokens, each.peak / MIB) for each in peaks if of == mode and each.peak is not None]
            if known:
                curves[method] = ([x for x, _ in known], [y for _, y in known])
        draw_lines(axis, curves)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xticks(tokens, [str(count) for count in tokens], rotation=45)
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        finish(axis, mode, "tokens", "peak memory, MiB")
    return figure
