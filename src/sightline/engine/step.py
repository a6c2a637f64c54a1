"""One update of the weights: parts, mixed precision, clipping, and a look at whether all numbers are finite."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from timm.utils import dispatch_clip_grad
from torch import Tensor
from torch.distributed.tensor import DTensor

from sightline.engine.config import Optim
from sightline.engine.distributed import total


class Stepper:
    """Computes gradients and applies them.

    Args:
        accelerator: Accelerate's engine.
        task: gives the loss.
        model, optimizer: as the accelerator prepared them.
        optim: clipping.
    """

    def __init__(self, accelerator: Any, task: Any, model: Any, optimizer: Any, optim: Optim) -> None:
        self.accelerator, self.task, self.model, self.optimizer, self.optim = accelerator, task, model, optimizer, optim
        self.scaled = accelerator.scaler is not None  # fp16: the scaler itself passes over gradients that overflow
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def gradients(self, parts: Sequence[Any], stop: bool) -> Tensor:
        """Gradients of an update, clipped; gives (bad, stop, loss), the same in every process.

        Args:
            parts: local batches of the update.
            stop: whether this process was asked to stop.
        """
        loss = torch.zeros((), device=self.accelerator.device)
        for number, batch in enumerate(parts, 1):
            last = number == len(parts)
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                with self.accelerator.autocast():
                    part = self.task.loss(self.model, batch) / len(parts)
                self.accelerator.backward(part)
            loss += part.detach()
        norm = self._clip()
        finite = loss.isfinite() if norm is None else loss.isfinite() & norm.isfinite()
        flags = torch.stack(
            [(~finite).float(), torch.full_like(loss, float(stop)), loss / self.accelerator.num_processes]
        )
        return total(flags)

    def _clip(self) -> Tensor | None:
        """Clip as asked; the norm of the gradients, or None where the scaler looks after them."""
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
        """The update itself."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def skip(self) -> None:
        """Forget the gradients of an update."""
        self.optimizer.zero_grad()


def _whole(norm: Tensor) -> Tensor:
    """A norm over all processes, where each holds a part of the gradients."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
