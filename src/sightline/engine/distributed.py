"""One process or many: Accelerate, and what to say when another process is gone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from sightline.engine.config import Run
from sightline.engine.errors import PeerError
from sightline.engine.values import ConfigError
from sightline.util.device import check_device

if TYPE_CHECKING:
    from accelerate import Accelerator

# What gloo, NCCL and the store behind them say when a process is gone.
LOST = ("peer", "gloo", "nccl", "timed out", "timeout", "connection", "broken pipe", "socket", "store")


def make_accelerator(run: Run) -> "Accelerator":
    """The engine: one process, or those that torchrun or `accelerate launch` started.

    Raises:
        ConfigError: Accelerate is not installed, or the device is not there.
    """
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError as error:
        raise ConfigError("training needs Accelerate: pip install accelerate tensorboard matplotlib") from error
    if run.device.startswith(("cuda:", "mps:")):
        raise ConfigError(f"run.device: {run.device}: give cuda, and name the card in CUDA_VISIBLE_DEVICES")
    check_device(run.device, "run.device")
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    if run.precision == "fp16" and (run.device == "cpu" or not torch.accelerator.is_available()):
        raise ConfigError("run.precision: fp16 needs a GPU; give bf16 or no")
    local, cards = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if run.device != "cpu" and 0 < cards < local:
        raise ConfigError(
            f"run.device: {local} processes for {cards} GPU{'s' * (cards > 1)} on this machine; start as many as there "
            f"are GPUs, or give --run.device cpu"
        )
    waiting = InitProcessGroupKwargs(timeout=timedelta(seconds=run.timeout))
    with peers():
        return Accelerator(cpu=run.device == "cpu", mixed_precision=run.precision, kwargs_handlers=[waiting])


def total(values: Tensor) -> Tensor:
    """The sum over all processes."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values


def wait(device: torch.device) -> None:
    """Return when all processes are here. Accelerate's barrier asks for as many GPUs, on CPU runs too."""
    total(torch.zeros((), device=device)).item()


def gather(items: list[Any]) -> list[Any]:
    """The items of all processes, those of the first process first."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]
    return items


def rank() -> int:
    """The number of this process, as launchers tell it."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def peers() -> Iterator[None]:
    """Where a collective operation fails because another process is gone, say so in one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        many = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if isinstance(error, PeerError) or not many or not any(word in text.lower() for word in LOST):
            raise
        line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        raise PeerError(
            f"rank {rank()}: another process of the run ended or answers no more ({line.strip()[:120]}); the last "
            f"checkpoint is intact: give the same command to resume"
        ) from error


def leave(accelerator: Any) -> None:
    """Forget the engine, so that another run of the same process can have its own."""
    from accelerate.state import AcceleratorState, GradientState

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
