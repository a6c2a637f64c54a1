"""Kernel launches: visible to torch's compiler, and replayed in eager mode.

An operator's implementation is a plain function: it makes tensors with `empty` and starts kernels with `launch`. Traced
by torch.compile, the launches become part of the graph. In eager mode Triton inspects every argument of every launch,
which takes longer than a small kernel runs; so the first call of a signature is recorded as a `Program`, and later
calls replay it with new addresses.

The replay uses private names of Triton. If any of them fails, launches go through Triton's public interface from then
on, with one warning.
"""

import os
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import wrap_triton

from sightline.ops.common.tracing import launch_directly, remember_accesses

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
THREADS = 16  # to compile in
CACHED = 4096  # programs at most; a full cache is cleared
ALIGNMENT = 256  # bytes, of buffers that share an allocation

remember_accesses()
launch_directly()

Constant = int | float | bool | str
Constants = Mapping[str, Constant]
Argument = Tensor | int | float | None


class Kernel(Protocol):
    """A function under `triton.jit`."""

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...

    def warmup(self, *args: object, grid: tuple[int, ...], **constants: object) -> object: ...


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A contiguous tensor that the kernels of the running implementation write."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if _local.recorder is not None:
        _local.recorder.add_buffer(made)
    return made


def views(base: Tensor, *parts: Tensor) -> None:
    """Declare views of an argument of the running implementation that kernels take in its place."""
    if _local.recorder is not None:
        for part in parts:
            _local.recorder.add_view(part, base)


def launch(kernel: Kernel, grid: tuple[int, ...], args: tuple[Argument, ...], constants: Constants) -> None:
    """Launch `kernel` on a grid of programs: `args` in the order of its signature, then `constants` by name."""
    if _local.recorder is not None:
        _local.recorder.launch(kernel, grid, args, constants)
    elif any(isinstance(t, Tensor) and t.is_meta for t in args):
        kernel.warmup(*args, grid=grid, **constants)
    elif not INTERPRETED:
        wrap_triton(kernel)[grid](*args, **constants)  # type: ignore[arg-type]
    elif not any(isinstance(t, FakeTensor) for t in args):
        kernel[grid](*args, **constants)


def recording() -> bool:
    """Whether this is the first call of a signature in eager mode."""
    return _local.recorder is not None


class Position(NamedTuple):
    """Where a launch finds a tensor: index of the argument, index of the tensor it lies in, offset in bytes."""

    argument: int
    slot: int
    offset: int


class Result(NamedTuple):
    """A tensor that a program returns: the allocation that holds it, and the view of it unless it is all of it."""

    slot: int
    view: tuple[Sequence[int], Sequence[int], int] | None

    def tensor(self, made: list[Tensor]) -> Tensor:
        return made[self.slot] if self.view is None else made[self.slot].as_strided(*self.view)


class Recorder:
    """Runs launches and records what a replay needs: buffers, launches and where their tensors are.

    Inputs are told apart by the tensor object, as two of them may share memory in one call and not in the next.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.buffers: list[Tensor] = []
        self.launches: list[Launch] = []
        self._inputs = len(inputs)
        self._known = {id(t): (t, slot, 0) for slot, t in enumerate(inputs)}
        self._starts: dict[int, tuple[int, int]] = {}  # start of a buffer's storage -> slot, address

    def add_buffer(self, made: Tensor) -> None:
        if made.numel():
            slot = self._inputs + len(self.buffers)
            self._starts[made.untyped_storage().data_ptr()] = slot, made.data_ptr()
        self.buffers.append(made)

    def add_view(self, view: Tensor, base: Tensor) -> None:
        _, slot, offset = self._known[id(base)]
        self._known[id(view)] = view, slot, offset + view.data_ptr() - base.data_ptr()

    def launch(self, kernel: Kernel, grid: tuple[int, ...], args: tuple[Argument, ...], constants: Constants) -> None:
        compiled = kernel[grid](*args, **constants)
        positions = []
        values: list[object] = [*args, *(constants[name] for name in kernel.arg_names[len(args) :])]
        for index, arg in enumerate(args):
            if isinstance(arg, Tensor):
                values[index] = 0  # the address of a tensor without elements; others are filled in at every replay
                if arg.numel():
                    positions.append(Position(index, *self._find(arg)))
        self.launches.append(Launch(compiled, (*grid, 1, 1)[:3], values, positions))

    def _find(self, t: Tensor) -> tuple[int, int]:
        """The slot that a tensor lies in and its offset in bytes."""
        if id(t) in self._known:
            return self._known[id(t)][1:]
        slot, start = self._starts[t.untyped_storage().data_ptr()]
        return slot, t.data_ptr() - start

    def program(self, outputs: Sequence[Tensor]) -> "Program":
        """The program of what was recorded. Buffers that hold no output share one allocation."""
        kept: dict[int, int] = {}  # slot of a buffer -> slot at replay
        results: list[Result | Tensor] = []
        shapes: list[tuple[tuple[int, ...], torch.dtype]] = []
        for out in outputs:
            if not out.numel():
                results.append(out)
                continue
            slot, offset = self._find(out)
            buffer = self.buffers[slot - self._inputs]
            if slot not in kept:
                kept[slot] = self._inputs + len(shapes)
                shapes.append((tuple(buffer.shape), buffer.dtype))
            whole = out.shape == buffer.shape and out.stride() == buffer.stride()
            view = None if whole else (out.shape, out.stride(), offset // out.itemsize)
            results.append(Result(kept[slot] - self._inputs, view))
        scratch, end = {}, 0
        for slot, buffer in enumerate(self.buffers, self._inputs):
            if slot not in kept and buffer.numel():
                scratch[slot] = end
                end += -(-buffer.numel() * buffer.itemsize // ALIGNMENT) * ALIGNMENT
        shared = self._inputs + len(shapes)
        for launch in self.launches:
            launch.positions = [
                Position(p.argument, shared, p.offset + scratch[p.slot])
                if p.slot in scratch
                else p._replace(slot=kept.get(p.slot, p.slot))
                for p in launch.positions
            ]
        return Program(shapes, end, self.launches, results)


@dataclass
class Launch:
    """One launch of a program: the compiled kernel and its arguments, of which only addresses change."""

    compiled: Any  # Triton's
    grid: tuple[int, ...]
    values: list[object]
    positions: list[Position]

    def __post_init__(self) -> None:
        self.run, self.head = _launcher(self.compiled)


@dataclass(frozen=True)
class Program:
    """What calls of one signature allocate, launch and return."""

    shapes: list[tuple[tuple[int, ...], torch.dtype]]  # of the allocations that hold outputs
    scratch: int  # bytes
    launches: list[Launch]
    results: list[Result | Tensor]  # tensors without elements are always the same

    def __call__(self, inputs: list[int], device: torch.device) -> list[Tensor]:
        """Run on inputs at these addresses."""
        made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.shapes]
        addresses = inputs + [t.data_ptr() for t in made]
        if self.scratch:
            shared = torch.empty(self.scratch, dtype=torch.uint8, device=device)
            addresses.append(shared.data_ptr())
        stream = _raw_stream(device.index)
        for launch in self.launches:
            values = launch.values.copy()
            for index, slot, offset in launch.positions:
                values[index] = addresses[slot] + offset
            launch.run(*launch.grid, stream, *launch.head, *values)
        return [r if isinstance(r, Tensor) else r.tensor(made) for r in self.results]


class _Local(threading.local):
    """What belongs to a thread: backward passes and servers call operators from several at once."""

    recorder: Recorder | None = None


_local = _Local()
_programs: dict[Hashable, Program] = {}
_direct = True  # programs are replayed


def replay(function: Callable[..., tuple[Tensor, ...]], args: Sequence[object]) -> Sequence[Tensor]:
    """`function(*args)`, recorded at the first call of a signature and replayed at later ones."""
    if INTERPRETED or not _direct:
        return function(*args)
    key: list[Hashable] = [function]
    inputs: list[int] = []
    device = None
    for arg in args:
        if isinstance(arg, Tensor):
            address = arg.data_ptr()
            key += (arg.shape, arg.stride(), arg.dtype, address & 15)
            inputs.append(address)
            device = device or arg.device
        else:
            key.append(arg)
    assert device is not None
    key.append(device.index)
    signature = tuple(key)
    program = _programs.get(signature)
    if program is None:
        return _record(function, args, signature)
    try:
        return program(inputs, device)
    except (AttributeError, TypeError, ValueError) as error:
        _give_up(error)
        return function(*args)


def _record(function: Callable[..., tuple[Tensor, ...]], args: Sequence[object], key: Hashable) -> Sequence[Tensor]:
    if len(_programs) >= CACHED:
        _programs.clear()
    args = [t.detach() if isinstance(t, Tensor) else t for t in args]  # one object per argument
    _local.recorder = recorder = Recorder([t for t in args if isinstance(t, Tensor)])
    try:
        outputs = function(*args)
        _programs[key] = recorder.program(outputs)
        return outputs
    except _Unsupported as error:
        _give_up(error)
    finally:
        _local.recorder = None
    return function(*args)


def forget() -> None:
    """Clear the cache, after a change of the rules by which work is split."""
    _programs.clear()


class _Unsupported(Exception):
    """This version of Triton has a different private interface."""


def _launcher(compiled: Any) -> tuple[Callable[..., object], tuple]:
    """What launches a compiled kernel, called as run(*grid, stream, *head, *arguments): private names of Triton."""
    try:
        return compiled.run, (compiled.function, compiled.packed_metadata, None, None, None)
    except AttributeError as error:
        raise _Unsupported(str(error)) from error


def _raw_stream(index: int) -> int:
    """The current CUDA stream as a number; torch's public function takes several microseconds."""
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


def compile_all(calls: Iterable[Callable[[], object]]) -> None:
    """Run calls on meta tensors, which compile their kernels in parallel and load them onto the current device.

    A kernel that fails here fails again, with its reason, when it is called.
    """
    if INTERPRETED or not _direct:
        return
    recorder, _local.recorder = _local.recorder, None
    try:
        from triton.runtime._async_compile import AsyncCompileMode

        with ThreadPoolExecutor(THREADS) as pool:
            loader = _Loader(pool, torch.cuda.current_device())
            with AsyncCompileMode(loader, ignore_errors=True):
                for call in calls:
                    call()
    except Exception as error:
        _give_up(error)
    finally:
        _local.recorder = recorder


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
