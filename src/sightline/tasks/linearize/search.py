"""What is asked of both stages: which blocks should keep softmax, and how fast teacher and student are."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sightline.data.order import Placement
from sightline.models.attention_error import attention_modules
from sightline.tasks.linearize.config import Config
from sightline.tasks.linearize.distiller import Distiller, divergence
from sightline.tasks.linearize.model import build
from sightline.tasks.linearize.task import Linearization
from sightline.tasks.metrics import NO_LABEL
from sightline.tasks.replay import replayed
from sightline.util.errors import InputError

IMAGES = 512  # that a search compares teacher and student on
CANDIDATES = 3  # blocks that are tried for each one that is kept
SIZES = (224, 512, 1024)
SLOW = 0.5  # images per second on a CPU below which larger sizes are left out
ROUNDS = 10  # of timed passes; eight come before, until passes are replayed


def check(config: Config, number: int) -> None:
    """Build teacher and student of the second stage, which then starts from the weights of the first.

    Args:
        config: of the second stage.
        number: of blocks that a search is to keep, 0 without one.

    Raises:
        InputError, FileError: as `build`, or there are not as many blocks.
    """
    student = build(replace(config, linearize=replace(config.linearize, start=None)))[0]
    blocks = len(attention_modules(student))
    if not 0 <= number < blocks:
        raise InputError(f"search={number}: the model has {blocks} blocks; give a number from 1 to {blocks - 1}")


@torch.no_grad()
def search(config: Config, placement: Placement, errors: Sequence[float], number: int) -> tuple[int, ...]:
    """The blocks that should keep softmax.

    Candidates are the blocks with the largest errors after stage 1. They are added one by one, each time the one with
    which the student comes closest to the teacher.

    Args:
        config: of a run whose student starts from the weights of stage 1.
        placement: has the device.
        errors: of every block after stage 1.
        number: of blocks to keep.
    """
    task = Linearization(config, placement)
    try:
        model = task.model
        assert isinstance(model, Distiller)
        images = _images(task)
    finally:
        task.close()
    wanted = model.teacher.model(images)
    students, teachers = model.attention, model.teacher.calls.attention
    owners = [_owner(model.student, module) for module in students]
    left = sorted(range(len(errors)), key=lambda i: -errors[i])[: CANDIDATES * number]
    kept: list[int] = []
    model.eval()
    for _ in range(number):
        gaps = {}
        for i in left:
            owners[i].attn = teachers[i]
            gaps[i] = float(divergence(model.student(images), wanted))
            owners[i].attn = students[i]
        best = min(gaps, key=lambda i: gaps[i])
        owners[best].attn = teachers[best]
        left.remove(best)
        kept.append(best)
    model.teacher.calls.take()
    return tuple(sorted(kept))


def _images(task: Linearization) -> Tensor:
    """The first images of the evaluation."""
    parts: list[Tensor] = []
    for images, labels in task.evaluation():
        parts.append(images[labels != NO_LABEL])
        if sum(map(len, parts)) >= IMAGES:
            break
    return torch.cat(parts)[:IMAGES]


def _owner(model: nn.Module, attention: nn.Module) -> nn.Module:
    return next(module for module in model.modules() if getattr(module, "attn", None) is attention)


@torch.no_grad()
def speeds(config: Config, device: torch.device) -> list[Mapping[str, float]]:
    """Images per second of teacher and student at several sizes, in evaluation mode, without compiling.

    On a GPU a pass is replayed as a CUDA graph in bfloat16, with 32 images; on a CPU it has one image, and sizes end
    where it takes seconds.
    """
    student, teacher, _, card = build(config)
    rows: list[Mapping[str, float]] = []
    for size in SIZES:
        images = torch.randn(32 if device.type == "cuda" else 1, card.input_size[0], size, size, device=device)
        row = {"size": float(size)}
        for name, model in (("teacher", teacher), ("student", student)):
            row[name] = _rate(replayed(model.eval().to(device), device), images)
        rows.append(row)
        if device.type == "cpu" and min(row["teacher"], row["student"]) < SLOW:
            break
    return rows


def _rate(model: nn.Module, images: Tensor) -> float:
    fast = images.device.type == "cuda"
    with torch.autocast(images.device.type, torch.bfloat16, enabled=fast):
        for _ in range(10 if fast else 1):
            model(images)
        rounds = ROUNDS if fast else 2
        if fast:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            model(images)
        if fast:
            torch.cuda.synchronize()
    return rounds * len(images) / (time.perf_counter() - start)
