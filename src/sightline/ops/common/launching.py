"""Kernel launches as data: what a call allocates and launches is planned once per signature and then replayed.

Triton inspects every argument of every launch, which takes longer than a small kernel runs. A `Program` is planned from
the layouts of its tensors alone, cached, and replayed with new addresses. Because planning needs no data, kernels can
also be compiled before the first call of a size (`compile_all`).

The replay uses private names of Triton. If any of them fails, launches go through Triton's public interface from then
on, with one warning.
"""

import math
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sightline.ops.common import kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
THREADS = 16  # that compile
CACHED = 4096  # programs at most; then the cache is emptied
ALIGNMENT = 256  # bytes, of buffers that share an allocation
SUM_TILE = {"PARTS": 8, "BLOCK": 512}  # of the sum over chunks

Constant = int | float | bool | str
Constants = dict[str, Constant]


@dataclass(frozen=True)
class Layout:
    """A tensor without its data: `offset` bytes into the tensor at `slot` among the inputs and buffers of a call."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0

    def part(self, shape: tuple[int, ...], first: int = 0) -> "Layout":
        """A contiguous tensor of another shape inside a contiguous one, starting at its element `first`."""
        return Layout(self.slot, shape, _contiguous(shape), self.dtype, self.offset + first * self.dtype.itemsize)


# An argument of a kernel. A tuple is a tensor with its strides (`tiles.Tokens`, for one): a Layout or None comes first.
Argument = Layout | int | float | None | tuple["Layout | int | None", ...]


class Kernel(Protocol):
    """A function under `triton.jit`."""

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...

    def warmup(self, *args: object, grid: tuple[int, ...], **constants: object) -> object: ...


class Program:
    """What calls of one signature allocate and launch. The function that plans it sets `results`, the slots to return.

    Buffers that are not results share one allocation.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.results: tuple[int, ...] = ()
        self.launches: list[Launch] = []
        self._buffers: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._scratch: int | None = None  # bytes, known once the first call has arranged the buffers

    def buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        """Reserve a tensor that the call allocates."""
        self._buffers.append((shape, dtype))
        return Layout(self.inputs + len(self._buffers) - 1, shape, _contiguous(shape), dtype)

    def launch(
        self, kernel: Kernel, grid: tuple[int, ...], args: tuple[Argument, ...], constants: Mapping[str, Constant]
    ) -> None:
        """Add a launch of `kernel` on a grid of programs: `args` in the order of its signature, then `constants`."""
        self.launches.append(Launch(kernel, (*grid, 1, 1)[:3], args, dict(constants)))

    def add_up(self, parts: Layout, dtype: torch.dtype, tile: Mapping[str, int] = SUM_TILE) -> Layout:
        """Add the sum over the first dimension, in a fixed order; nothing to do for a single part of that dtype."""
        if parts.shape[0] == 1 and parts.dtype == dtype:
            return parts.part(parts.shape[1:])
        out = self.buffer(parts.shape[1:], dtype)
        size = math.prod(out.shape)
        self.launch(kernels.add_parts, (-(-size // tile["BLOCK"]),), (parts, out, parts.shape[0], size), tile)
        return out

    def __call__(self, inputs: Sequence[Tensor | None], device: torch.device) -> list[Tensor]:
        """Run on tensors of the planned layouts; returns the results."""
        if self._scratch is None:
            self._arrange()
        results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._result_shapes]
        tensors = [*inputs, *results]
        if self._scratch:
            tensors.append(torch.empty(self._scratch, dtype=torch.uint8, device=device))
        if INTERPRETED or not _direct:
            for launch in self.launches:
                launch.plain(tensors)
        else:
            stream = _raw_stream(device.index)
            addresses = [0 if t is None else t.data_ptr() for t in tensors]
            for launch in self.launches:
                launch(tensors, addresses, stream)
        return results

    def _arrange(self) -> None:
        """Give every buffer its slot and offset: results in the order of `results`, then the shared allocation."""
        positions, end = {}, 0
        for number, (shape, dtype) in enumerate(self._buffers):
            slot = self.inputs + number
            if slot in self.results:
                positions[slot] = self.inputs + self.results.index(slot), 0
            else:
                positions[slot] = self.inputs + len(self.results), end
                end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        for launch in self.launches:
            launch.arrange(positions)
        self._result_shapes = [self._buffers[slot - self.inputs] for slot in self.results]
        self._scratch = end


class Launch:
    """One launch of a program. After the first time only the addresses change."""

    def __init__(self, kernel: Kernel, grid: tuple[int, ...], args: tuple[Argument, ...], constants: Constants) -> None:
        self.kernel = kernel
        self.grid = grid
        self.args = args
        self.constants = constants
        self._run: Callable[..., object] | None = None

    def arrange(self, positions: dict[int, tuple[int, int]]) -> None:
        """Find the tensors: index of the argument, slot, offset in bytes, and the strides that come with a pointer."""
        self._tensors: list[tuple[int, int, int, tuple | None]] = []
        for index, arg in enumerate(self.args):
            layout = _layout_in(arg)
            if layout is not None:
                slot, start = positions.get(layout.slot, (layout.slot, 0))
                strides = arg[1:] if isinstance(arg, tuple) else None
                self._tensors.append((index, slot, start + layout.offset, strides))

    def plain(self, tensors: Sequence[Tensor | None]) -> object:
        """Launch through Triton, which finds or compiles the kernel."""
        args: list[object] = list(self.args)
        for index, slot, offset, _ in self._tensors:
            args[index] = _with_tensor(self.args[index], lambda dtype: _inside(tensors[slot], offset, dtype))  # noqa: B023
        return self.kernel[self.grid](*args, **self.constants)

    def __call__(self, tensors: Sequence[Tensor | None], addresses: list[int], stream: int) -> None:
        """Launch the kernel that Triton has compiled before, without its checks."""
        if self._run is None:
            compiled = self.plain(tensors)
            try:
                self._run, self._head = _launcher(compiled)
            except Exception as error:
                _give_up(error)
            rest = (self.constants[name] for name in self.kernel.arg_names[len(self.args) :])
            self._values: list[object] = [*self.args, *rest]
            return
        values = self._values.copy()
        for index, slot, offset, strides in self._tensors:
            address = addresses[slot] + offset
            values[index] = address if strides is None else (address, *strides)
        try:
            self._run(*self.grid, stream, *self._head, *values)
        except Exception as error:
            _give_up(error)
            self.plain(tensors)

    def compile(self) -> None:
        """Compile the kernel without data or a launch."""
        args = (_with_tensor(arg, lambda dtype: torch.empty(1, dtype=dtype, device="meta")) for arg in self.args)
        self.kernel.warmup(*args, grid=self.grid, **self.constants)


_direct = True  # kernels are launched without Triton's checks


def _launcher(compiled: Any) -> tuple[Callable[..., object], tuple]:
    """What launches a compiled kernel, called as run(*grid, stream, *head, *arguments): private names of Triton."""
    return compiled.run, (compiled.function, compiled.packed_metadata, None, None, None)


def _raw_stream(index: int) -> int:
    """The current CUDA stream as a number; torch's public way to it takes several microseconds."""
    private = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return private(index) if private is not None else torch.cuda.current_stream(index).cuda_stream


def _give_up(error: Exception) -> None:
    """Launch through Triton's public interface from now on."""
    global _direct
    if _direct:
        _direct = False
        warnings.warn(
            f"sightline: direct kernel launches failed ({type(error).__name__}: {error}); "
            "launching through Triton instead, which is slower for small inputs",
            RuntimeWarning,
            stacklevel=3,
        )


def _layout_in(arg: Argument) -> Layout | None:
    """The Layout that an argument is or starts with, if there is one."""
    first = arg[0] if isinstance(arg, tuple) else arg
    return first if isinstance(first, Layout) else None


def _with_tensor(arg: Argument, tensor: Callable[[torch.dtype], Tensor]) -> object:
    """The argument with its Layout, if there is one, replaced by a tensor of that dtype."""
    layout = _layout_in(arg)
    if layout is None:
        return arg
    make: Callable[..., object] = type(arg)
    return make(tensor(layout.dtype), *arg[1:]) if isinstance(arg, tuple) else tensor(layout.dtype)


def _inside(tensor: Tensor | None, offset: int, dtype: torch.dtype) -> Tensor:
    """The tensor itself, or the one that starts `offset` bytes into a contiguous one."""
    assert tensor is not None
    if offset == 0 and tensor.dtype == dtype:
        return tensor
    return tensor.flatten().view(torch.uint8)[offset:].view(dtype)


def products(dtype: torch.dtype) -> str:
    """How kernels multiply tensors of a dtype: float32 in TF32 where torch's own products may, else in full.

    Triton's interpreter has no products of bfloat16.
    """
    if dtype == torch.bfloat16:
        return "tf32" if INTERPRETED else "bf16"
    return "fp32" if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32" else "tf32"


_programs: dict[Hashable, Program] = {}


def program_for(name: str, inputs: Sequence[Tensor | None], options: tuple, plan: Callable[..., Program]) -> Program:
    """The program of a call signature: cached by its options and the layouts of its inputs, or planned now."""
    device = next(t.device.index for t in inputs if t is not None)
    key = (name, device, options, products(torch.float32), *[None if t is None else _kind(t) for t in inputs])
    program = _programs.get(key)
    if program is None:
        if len(_programs) >= CACHED:
            _programs.clear()
        program = plan(*[None if t is None else layout_of(t, slot) for slot, t in enumerate(inputs)])
        _programs[key] = program
    return program


def layout_of(tensor: Tensor, slot: int) -> Layout:
    return Layout(slot, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _kind(tensor: Tensor) -> tuple:
    """What a launch depends on besides the address itself."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() % 16


def forget() -> None:
    """Empty the cache, after a rule by which programs are planned has changed."""
    _programs.clear()


def in_order(t: Tensor | None) -> Tensor | None:
    """A mask or table as the kernels read it: row by row."""
    return None if t is None else t.contiguous()


def without(constants: Constants, *names: str) -> Constants:
    return {key: value for key, value in constants.items() if key not in names}


def compile_all(programs: Iterable[Program]) -> None:
    """Compile the kernels of several programs in parallel and load them onto the current device.

    A kernel that fails here fails again, with its reason, when it is called.
    """
    if not _direct:
        return
    try:
        from triton.runtime._async_compile import AsyncCompileMode

        with ThreadPoolExecutor(THREADS) as pool:
            loader = _Loader(pool, torch.cuda.current_device())
            with AsyncCompileMode(loader, ignore_errors=True):
                for program in programs:
                    for launch in program.launches:
                        launch.compile()
    except Exception as error:
        _give_up(error)


@dataclass(frozen=True)
class _Loader:
    """Threads that compile and load: the C compiler that Triton calls for launchers runs while others compile."""

    pool: ThreadPoolExecutor
    device: int

    def submit(self, compile: Callable[[], Kernel]) -> Future:
        return self.pool.submit(self._load, compile)

    def _load(self, compile: Callable[[], Kernel]) -> object:
        """Compile a kernel and load it onto the device, which indexing it with a grid does."""
        kernel = compile()
        with torch.cuda.device(self.device):  # new threads start on device 0
            kernel[(1, 1, 1)]
        return kernel


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
