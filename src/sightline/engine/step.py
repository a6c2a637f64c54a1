"""One update of the weights: micro-batches, mixed precision, clipping, and flags that all processes share."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from timm.utils import dispatch_clip_grad
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from sightline.engine.compiling import CompiledModel
from sightline.engine.distributed import total
from sightline.engine.recording import Recorder, recordable
from sightline.tasks.base import Task
from sightline.tasks.config import Optim

if TYPE_CHECKING:
    from accelerate import Accelerator


class StepFlags(NamedTuple):
    """The outcome of an update over all processes: non-finite numbers, a request to stop, the mean loss."""

    bad: float
    stop: float
    loss: float


class Stepper:
    """Computes the gradients of an update.

    Args:
        accelerator: Accelerate's engine.
        task: computes the loss.
        model, optimizer: as prepared by the accelerator.
        optim: clipping.
        lag: copy flags from the device without blocking it; they are then those of the previous update.
        compiled: the same model, compiled or not.
        recorder: replays updates, which then have one micro-batch.
    """

    def __init__(
        self, accelerator: "Accelerator", task: Task, model: nn.Module, optimizer: Optimizer, optim: Optim, lag: bool,
        compiled: CompiledModel, recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        self.accelerator, self.task, self.model, self.optimizer = accelerator, task, model, optimizer
        self.optim, self.lag, self.compiled, self.recorder = optim, lag, compiled, recorder
        self.scaled = accelerator.scaler is not None  # fp16: the scaler itself skips gradients that overflow
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._pending: tuple[Tensor, torch.cuda.Event] | None = None

    def gradients(self, micro_batches: Sequence[object], seed: int, stop: bool) -> StepFlags | None:
        """Compute and clip the gradients of an update.

        Args:
            micro_batches: of the update, in this process.
            seed: of the random numbers that the model draws.
            stop: whether this process was asked to stop.

        Returns:
            The flags of this update, or of the previous one (None before the second); the same in every process.
        """
        loss = self.compiled.attempt(lambda: self._backward(micro_batches, seed))
        norm = self._clip()
        finite = (loss if norm is None else loss + norm).isfinite()  # of both
        values = [(~finite).float(), torch.full_like(loss, float(stop)), loss / self.accelerator.num_processes]
        flags = total(torch.stack(values))
        if not self.lag:
            return StepFlags(*flags.tolist())
        previous = self.flush()
        host = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True).copy_(flags, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending = (host, event)
        return previous

    def _backward(self, micro_batches: Sequence[object], seed: int) -> Tensor:
        """Add up the gradients of the micro-batches; returns the loss."""
        _seed(seed, self.accelerator.device)
        first = micro_batches[0]
        if self.recorder and not self.compiled.failed and recordable(first):
            return self.recorder(self._pass, first)
        losses = []
        for number, batch in enumerate(micro_batches, 1):
            last = number == len(micro_batches)
            if self.compiled.graphs:
                torch.compiler.cudagraph_mark_step_begin()
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                losses.append(self._pass(batch, len(micro_batches)))
            if number == 1 and not last and self.compiled.graphs:
                self._own_gradients()
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _pass(self, batch: object, parts: int = 1) -> Tensor:
        """Add the gradients of one of `parts` micro-batches; returns its share of the loss."""
        with self.accelerator.autocast():
            share = self.task.loss(self.model, batch) / parts
        self.accelerator.backward(share)
        return share.detach()

    def _own_gradients(self) -> None:
        """Copy gradients out of the memory of a CUDA graph, which its next replay overwrites; later ones are added."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def flush(self) -> StepFlags | None:
        """The flags that are still on the device."""
        if self._pending is None:
            return None
        values, event = self._pending
        self._pending = None
        event.synchronize()
        return StepFlags(*values.tolist())

    def _clip(self) -> Tensor | None:
        """Clip as configured; returns the norm of the gradients, or None if the scaler checks them."""
        optim, norm = self.optim, None
        if optim.clip is not None and optim.clip_mode == "norm":
            norm = self.accelerator.clip_grad_norm_(self.parameters, optim.clip)
        elif not self.scaled:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if optim.clip is not None and optim.clip_mode != "norm":
            self.accelerator.unscale_gradients()
            dispatch_clip_grad(self.parameters, optim.clip, mode=optim.clip_mode)
        if self.scaled:
            return None
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators that the model draws from. `torch.manual_seed` takes milliseconds without a GPU."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
