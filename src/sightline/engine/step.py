"""One update of the weights: micro-batches, mixed precision, clipping, and a check that all numbers are finite."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from timm.utils import dispatch_clip_grad
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from sightline.engine.distributed import total
from sightline.tasks.base import Task
from sightline.tasks.config import Optim

if TYPE_CHECKING:
    from accelerate import Accelerator


class Stepper:
    """Computes gradients and applies them.

    Args:
        accelerator: Accelerate's engine.
        task: computes the loss.
        model, optimizer: as prepared by the accelerator.
        optim: clipping.
    """

    def __init__(
        self, accelerator: "Accelerator", task: Task, model: nn.Module, optimizer: Optimizer, optim: Optim
    ) -> None:
        self.accelerator, self.task, self.model, self.optimizer, self.optim = accelerator, task, model, optimizer, optim
        self.scaled = accelerator.scaler is not None  # fp16: the scaler itself skips gradients that overflow
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def gradients(self, micro_batches: Sequence[object], stop: bool) -> Tensor:
        """Compute and clip the gradients of an update; returns (bad, stop, loss), the same in every process.

        Args:
            micro_batches: of the update, in this process.
            stop: whether this process was asked to stop.
        """
        loss = torch.zeros((), device=self.accelerator.device)
        for number, batch in enumerate(micro_batches, 1):
            last = number == len(micro_batches)
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                with self.accelerator.autocast():
                    share = self.task.loss(self.model, batch) / len(micro_batches)
                self.accelerator.backward(share)
            loss += share.detach()
        norm = self._clip()
        finite = loss.isfinite() if norm is None else loss.isfinite() & norm.isfinite()
        flags = torch.stack(
            [(~finite).float(), torch.full_like(loss, float(stop)), loss / self.accelerator.num_processes]
        )
        return total(flags)

    def _clip(self) -> Tensor | None:
        """Clip as configured; returns the norm of the gradients, or None if the scaler checks them."""
        optim = self.optim
        if optim.clip is not None and optim.clip_mode == "norm":
            norm = self.accelerator.clip_grad_norm_(self.parameters, optim.clip)
            return None if self.scaled else _whole(norm)
        norm = None
        if not self.scaled:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if optim.clip is not None:
            self.accelerator.unscale_gradients()
            dispatch_clip_grad(self.parameters, optim.clip, mode=optim.clip_mode)
        return None if norm is None else _whole(norm)

    def apply(self) -> None:
        """Update the weights."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def skip(self) -> None:
        """Discard the gradients of an update."""
        self.optimizer.zero_grad()


def _whole(norm: Tensor) -> Tensor:
    """The norm over all processes, if each holds a shard of the gradients."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
