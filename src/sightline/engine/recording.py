"""The forward and backward pass of an update as one CUDA graph, for models that are compiled block by block or not.

The host launches every kernel of every update; a recorded update is one launch. Batches are tensors or tuples of
tensors; each of a few kinds of them (sizes, mixed labels or not) has a graph of its own.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sightline.util.text import one_line

WARM = 3  # updates before one is recorded: they compile, and choose the algorithms of matrix products
ATTEMPTS = 3  # to record an update: what disturbs one of them need not disturb the next
KINDS = 4  # of batches that are recorded: every graph has memory of its own
T = TypeVar("T")
Batch = Any  # Tensor | tuple[Tensor, ...], named or not
Pass = Callable[[Batch], Tensor]  # a batch -> its loss; leaves the gradients in the parameters
Replay = Callable[[Batch], tuple[Tensor, list[Tensor | None]]]  # a batch -> its loss and the gradients


def recordable(batch: object) -> bool:
    """Whether a batch is a tensor or a tuple of tensors."""
    return isinstance(batch, Tensor) or (isinstance(batch, tuple) and all(isinstance(part, Tensor) for part in batch))


class Recorder:
    """Runs passes, after a few as replays of a CUDA graph.

    Args:
        parameters: get the gradients.
        line: prints a line.
        buffers: what a forward pass changes, such as the statistics of batch norm.
        record: makes a function that replays a pass for batches like one batch.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        line: Callable[[str], None],
        buffers: Sequence[Tensor] = (),
        record: Callable[[Pass, Batch, Sequence[nn.Parameter], Sequence[Tensor]], Replay] | None = None,
    ) -> None:
        self.parameters, self.line, self.buffers = parameters, line, buffers
        self.record = record or record_graph
        self.replays: dict[object, Replay] = {}  # of kinds of batches
        self.passes: dict[object, int] = {}
        self.failures = 0

    def __call__(self, work: Pass, batch: Batch) -> Tensor:
        """`work(batch)`; gradients must be None before it."""
        kind = tuple((part.shape, part.stride(), part.dtype, part.device) for part in _parts(batch))
        self.passes[kind] = self.passes.get(kind, 0) + 1
        if kind not in self.replays:
            if self.failures == ATTEMPTS or self.passes[kind] <= WARM or len(self.replays) == KINDS:
                return work(batch)
            try:
                self.replays[kind] = self.record(work, batch, self.parameters, self.buffers)
            # torch's error of an operation that waits for the device, or of memory. A model's own mistakes are others.
            except RuntimeError as error:
                self.failures += 1
                if self.failures == ATTEMPTS:
                    self.line(f"no CUDA graph of an update ({one_line(first_cause(error), 160)}); continuing without")
                self._forget()
                return work(batch)
        loss, gradients = self.replays[kind](batch)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def first_cause(error: BaseException) -> BaseException:
    """What went wrong first: an invalid recording raises its own error at its end."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def capture(work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """A CUDA graph of `work`, which does not run now, and what `work` returns: a replay overwrites it."""
    graph = torch.cuda.CUDAGraph()
    # Loaders pin memory meanwhile, in threads of their own.
    with no_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        return graph, work()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect before the context, not within it: a finalizer may call what a recording does not permit."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def record_graph(
    work: Pass, batch: Batch, parameters: Sequence[nn.Parameter], buffers: Sequence[Tensor] = ()
) -> Replay:
    """A CUDA graph of `work`; its gradients are overwritten by the next replay."""
    parts = [part.clone(memory_format=torch.preserve_format) for part in _parts(batch)]
    fixed = _like(batch, parts)
    before = [buffer.clone() for buffer in buffers]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(fixed)
    torch.cuda.current_stream().wait_stream(side)
    for parameter in parameters:
        parameter.grad = None
    with torch.no_grad():  # that pass is none of the training
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
    graph, loss = capture(lambda: work(fixed))
    gradients = [parameter.grad for parameter in parameters]

    def replay(given: Batch) -> tuple[Tensor, list[Tensor | None]]:
        for part, value in zip(parts, _parts(given), strict=True):
            part.copy_(value)
        graph.replay()
        return loss.clone(), gradients

    return replay


def _parts(batch: Batch) -> tuple[Tensor, ...]:
    return (batch,) if isinstance(batch, Tensor) else tuple(batch)


def _like(batch: Batch, parts: Sequence[Tensor]) -> Batch:
    """A batch of the same type as `batch`."""
    if isinstance(batch, Tensor):
        return parts[0]
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
