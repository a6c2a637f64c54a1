"""One process or many: Accelerate, sums over processes, and a clear error when another process is gone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from sightline.tasks.config import Run
from sightline.util.device import choose_device, usable_precision
from sightline.util.errors import InputError, RunError

if TYPE_CHECKING:
    from accelerate import Accelerator

# In the messages of gloo, NCCL and their store when a process is gone.
LOST = ("peer", "gloo", "nccl", "timed out", "timeout", "connection", "broken pipe", "socket", "store")


class PeerError(RunError):
    """Another process of the run ended or no longer responds."""


def make_accelerator(run: Run) -> "Accelerator":
    """Accelerate's engine for one process, or for those that torchrun or `accelerate launch` started.

    Raises:
        InputError: Accelerate is not installed, or the device is not available.
    """
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs
    except ImportError as error:
        raise InputError("training needs Accelerate: pip install accelerate tensorboard matplotlib") from error
    if run.device.startswith(("cuda:", "mps:")):
        raise InputError(f"run.device: expected cuda, with the GPU in CUDA_VISIBLE_DEVICES; got {run.device!r}")
    device = choose_device(run.device, "run.device")
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    if run.precision == "fp16" and (run.device == "cpu" or not torch.accelerator.is_available()):
        raise InputError("run.precision: fp16 needs a GPU; give bf16 or no")
    local, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if run.device != "cpu" and 0 < gpus < local:
        raise InputError(
            f"run.device: {local} processes for {gpus} GPU{'s' * (gpus > 1)} on this machine; start one process per "
            f"GPU, or give cpu"
        )
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=run.timeout))
    with peers():
        precision = usable_precision(device, run.precision)
        return Accelerator(cpu=run.device == "cpu", mixed_precision=precision, kwargs_handlers=[timeout])


def _many() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def total(values: Tensor) -> Tensor:
    """The sum over all processes."""
    if _many():
        values = values.clone()
        dist.all_reduce(values)
    return values


def wait(device: torch.device) -> None:
    """Block until all processes arrive. Accelerate's barrier needs one GPU per process, on CPU runs too."""
    total(torch.zeros((), device=device)).item()


def gather(items: list[object]) -> list[object]:
    """The items of all processes, those of rank 0 first."""
    if not _many():
        return items
    found: list[list[object]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, items)
    return [item for part in found for item in part]


def rank() -> int:
    """The rank of this process, as launchers set it."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def peers() -> Iterator[None]:
    """Turn the failure of a collective operation into a PeerError of one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        many = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if isinstance(error, PeerError) or not many or not any(word in text.lower() for word in LOST):
            raise
        line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        raise PeerError(
            f"rank {rank()}: another process of the run ended or no longer responds ({line.strip()[:120]}); the last "
            f"checkpoint is intact: run the same command to resume"
        ) from error


def leave() -> None:
    """Reset Accelerate, so that the same process can start another run."""
    from accelerate.state import AcceleratorState, GradientState

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
