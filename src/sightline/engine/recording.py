"""The forward and backward pass of an update as one CUDA graph, for models that are compiled block by block.

Their blocks are fast, but the host launches every kernel of every update. A recorded update is one launch.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sightline.util.text import one_line

WARM = 3  # updates before one is recorded: they compile, and choose the algorithms of matrix products
ATTEMPTS = 3  # to record an update: what disturbs one of them need not disturb the next
Pass = Callable[[Tensor], Tensor]  # a batch -> its loss; leaves the gradients in the parameters
Replay = Callable[[Tensor], tuple[Tensor, list[Tensor | None]]]  # a batch -> its loss and the gradients


class Recorder:
    """Runs passes, after a few as replays of a CUDA graph.

    Args:
        parameters: get the gradients.
        line: prints a line.
        record: makes a function that replays a pass for batches like one batch.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        line: Callable[[str], None],
        record: Callable[[Pass, Tensor, Sequence[nn.Parameter]], Replay] | None = None,
    ) -> None:
        self.parameters, self.line = parameters, line
        self.record = record or record_graph
        self.replay: Replay | None = None
        self.kind: object = None  # of the batches that the graph is for
        self.passes = 0
        self.failures = 0

    def __call__(self, work: Pass, batch: Tensor) -> Tensor:
        """`work(batch)`; gradients must be None before it."""
        self.passes += 1
        if self.failures == ATTEMPTS or self.passes <= WARM:
            return work(batch)
        kind = (batch.shape, batch.stride(), batch.dtype, batch.device)
        if self.replay is None:
            try:
                self.replay, self.kind = self.record(work, batch, self.parameters), kind
            # torch's error of an operation that waits for the device, or of memory. A model's own mistakes are others.
            except RuntimeError as error:
                self.failures += 1
                if self.failures == ATTEMPTS:
                    self.line(f"no CUDA graph of an update ({one_line(first_cause(error), 160)}); continuing without")
                self._forget()
        if self.replay is None or kind != self.kind:
            return work(batch)
        loss, gradients = self.replay(batch)
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


def record_graph(work: Pass, batch: Tensor, parameters: Sequence[nn.Parameter]) -> Replay:
    """A CUDA graph of `work`; its gradients are overwritten by the next replay."""
    fixed = batch.clone(memory_format=torch.preserve_format)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(fixed)
    torch.cuda.current_stream().wait_stream(side)
    for parameter in parameters:
        parameter.grad = None
    graph = torch.cuda.CUDAGraph()
    # Loaders pin memory meanwhile, in threads of their own.
    with no_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        loss = work(fixed)
    gradients = [parameter.grad for parameter in parameters]

    def replay(given: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        fixed.copy_(given)
        graph.replay()
        return loss.clone(), gradients

    return replay
