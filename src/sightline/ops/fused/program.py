"""A call of kernels as data: what it allocates and what it launches, planned once for every kind of call.

Triton looks at every argument of every launch, which takes longer than a small kernel runs. Here a call is planned from
the layouts of its tensors alone, remembered, and repeated with new addresses. Because a plan needs no data, kernels for
sizes that have not come yet can be compiled from plans too (`compile_all`).
"""

import math
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.runtime._async_compile import AsyncCompileMode

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
THREADS = 16  # that compile
REMEMBERED = 4096  # kinds of calls at most; then all are forgotten
ALIGNMENT = 256  # bytes, of buffers that share an allocation


@dataclass(frozen=True)
class Layout:
    """A tensor without its data: `offset` bytes into what is at `slot` among the inputs and buffers of a call."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0

    def part(self, shape: tuple[int, ...], first: int = 0) -> "Layout":
        """A contiguous tensor of another shape inside a contiguous one, from its element `first` on."""
        return Layout(self.slot, shape, _contiguous(shape), self.dtype, self.offset + first * self.dtype.itemsize)


class Program:
    """What one kind of call allocates and launches; a function that plans it says which slots are its results.

    Buffers that are not results share one allocation.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.results: tuple[int, ...] = ()
        self._buffers: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._launches: list[_Launch] = []
        self._scratch: int | None = None  # bytes, known when the first call arranges the buffers

    def buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        """Room for a tensor that the call makes."""
        self._buffers.append((shape, dtype))
        return Layout(self.inputs + len(self._buffers) - 1, shape, _contiguous(shape), dtype)

    def launch(self, kernel: Any, grid: tuple[int, ...], args: tuple, constants: dict[str, Any]) -> None:
        """Launch `kernel` on a grid of programs: `args` in the order of its signature, then its `constants`."""
        self._launches.append(_Launch(kernel, (*grid, 1, 1)[:3], args, constants))

    def __call__(self, inputs: Sequence[Tensor | None], device: torch.device) -> list[Tensor]:
        """Run on tensors of the planned layouts; returns the results."""
        if self._scratch is None:
            self._arrange()
        results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._own]
        tensors = [*inputs, *results]
        if self._scratch:
            tensors.append(torch.empty(self._scratch, dtype=torch.uint8, device=device))
        if INTERPRETED:
            for launch in self._launches:
                launch.first(tensors)
        else:
            stream = torch._C._cuda_getCurrentRawStream(device.index)
            addresses = [0 if t is None else t.data_ptr() for t in tensors]
            for launch in self._launches:
                launch(tensors, addresses, stream)
        return results

    def _arrange(self) -> None:
        """Give every buffer its place: results in the order of `results`, then the room that the others share."""
        places, end = {}, 0
        for number, (shape, dtype) in enumerate(self._buffers):
            slot = self.inputs + number
            if slot in self.results:
                places[slot] = self.inputs + self.results.index(slot), 0
            else:
                places[slot] = self.inputs + len(self.results), end
                end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        for launch in self._launches:
            launch.arrange(places)
        self._own = [self._buffers[slot - self.inputs] for slot in self.results]
        self._scratch = end

    def compile(self) -> None:
        """Compile what will be launched, without data or launches."""
        for launch in self._launches:
            launch.compile()


class _Launch:
    """One launch of a program. After the first time only the addresses change."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], args: tuple, constants: dict[str, Any]) -> None:
        self.kernel = kernel
        self.grid = grid
        self.args = args
        self.constants = constants
        self.compiled: Any = None

    def arrange(self, places: dict[int, tuple[int, int]]) -> None:
        """Find the tensors among the arguments: place of the argument, slot and bytes into what lies there."""
        self.tensors = []
        for place, arg in enumerate(self.args):
            if isinstance(arg, Layout):
                slot, start = places.get(arg.slot, (arg.slot, 0))
                self.tensors.append((place, slot, start + arg.offset))

    def first(self, tensors: list[Tensor | None]) -> None:
        """Launch through Triton, which finds or compiles the kernel."""
        args = list(self.args)
        for place, slot, offset in self.tensors:
            args[place] = _inside(tensors[slot], offset, args[place].dtype)
        compiled = self.kernel[self.grid](*args, **self.constants)
        if INTERPRETED:
            return
        rest = (self.constants[name] for name in self.kernel.arg_names[len(args) :])
        self.values = [*self.args, *rest]
        self.head = (compiled.function, compiled.packed_metadata, None, None, None)
        self.compiled = compiled.run

    def __call__(self, tensors: list[Tensor | None], addresses: list[int], stream: int) -> None:
        if self.compiled is None:
            self.first(tensors)
            return
        values = self.values.copy()
        for place, slot, offset in self.tensors:
            values[place] = addresses[slot] + offset
        self.compiled(*self.grid, stream, *self.head, *values)

    def compile(self) -> None:
        stand_ins = (torch.empty(1, dtype=a.dtype, device="meta") if isinstance(a, Layout) else a for a in self.args)
        self.kernel.warmup(*stand_ins, grid=self.grid, **self.constants)


def _inside(tensor: Any, offset: int, dtype: torch.dtype) -> Tensor:
    """The tensor itself, or what lies so many bytes into a contiguous one."""
    if offset == 0 and tensor.dtype == dtype:
        return tensor
    return tensor.flatten().view(torch.uint8)[offset:].view(dtype)


def products(dtype: torch.dtype) -> str:
    """How kernels multiply tensors of a type: float32 in TF32 where torch's own products may, else in full.

    Triton's interpreter has no products of bfloat16.
    """
    if dtype == torch.bfloat16:
        return "tf32" if INTERPRETED else "bf16"
    return "fp32" if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32" else "tf32"


_programs: dict[Hashable, Program] = {}


def program_for(name: str, inputs: Sequence[Tensor | None], options: tuple, plan: Callable[..., Program]) -> Program:
    """The program of a kind of call: remembered by its options and the layouts of its inputs, or planned now."""
    device = next(t.device.index for t in inputs if t is not None)
    key = (name, device, options, products(torch.float32), *[None if t is None else _kind(t) for t in inputs])
    program = _programs.get(key)
    if program is None:
        if len(_programs) >= REMEMBERED:
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
    """Forget all programs, after a rule by which they are planned has changed."""
    _programs.clear()


def compile_all(programs: Iterable[Program]) -> None:
    """Compile the kernels of several programs in parallel and bring them onto the current device.

    What fails here fails again, and says why, when it is called.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        loader = _Loader(pool, torch.cuda.current_device())
        with AsyncCompileMode(loader, ignore_errors=True):
            for program in programs:
                program.compile()


@dataclass(frozen=True)
class _Loader:
    """Threads that compile and load: the C compiler that Triton calls for launchers works while others compile."""

    pool: ThreadPoolExecutor
    device: int

    def submit(self, compile: Callable[[], Any]) -> Future:
        return self.pool.submit(self._load, compile)

    def _load(self, compile: Callable[[], Any]) -> Any:
        """Compile a kernel and bring it onto the device, which asking for its launcher does."""
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
