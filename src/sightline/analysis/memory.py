"""Peak memory against the number of tokens (SOFT's Fig. 1b): 12 blocks, width 384, 12 heads, 49 landmarks, batch 1.

On CUDA the peak of the allocator is read. On a CPU the operators run on tensors without data, and the bytes of all that
are alive at once are counted: exact for what torch allocates as tensors, without the scratch space inside a kernel, and
as fast at 6,272 tokens as at 784.
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sightline.layers.attention import Attention
from sightline.layers.blocks import PreNormBlock
from sightline.layers.core import Grid, Place
from sightline.layers.mechanisms.softmax import SoftmaxCore

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
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.add(out)
        return out

    def add(self, tensors: object) -> None:
        """Count the storages of tensors, each once."""
        for leaf in tree_leaves(tensors):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
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
