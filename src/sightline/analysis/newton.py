"""Convergence of the Newton iteration (SOFT's Fig. 5): ||A A_k A - A|| / ||A|| against k, and condition numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall
from sightline.analysis.charts import HIGH, WIDE, draw_lines, finish
from sightline.analysis.figures import new_figure
from sightline.analysis.study import Facts, Study, Subject, Tick, no_tick, over_images, short
from sightline.layers.core import Core
from sightline.ops.soft.newton import convergence
from sightline.util.errors import InputError


@dataclass(frozen=True)
class Newton:
    """One block on one image: landmarks, errors (windows * H, k + 1) after 0 to k steps, condition numbers."""

    block: str
    landmarks: int
    errors: Tensor
    conditions: Tensor


@torch.no_grad()
def measure_newton(blocks: Sequence[BlockCall], iterations: int = 20) -> list[Newton]:
    """The iteration of every SOFT block on the matrix that it inverts, in float32 as the model runs it.

    Raises:
        InputError: there is no SOFT block.
    """
    found = []
    for block in blocks:
        for part in block.parts:
            if part.core.inverts:
                call = part.to(torch.float32)
                matrix, step = (t.flatten(0, 1) for t in call.core.newton_matrix(call.q, call.place))
                errors = newton_errors(matrix, step, iterations)
                found.append(Newton(block.name, matrix.shape[-1], errors.cpu(), condition_number(matrix).cpu()))
    if not found:
        raise InputError("this model has no SOFT blocks; choose one, such as --model soft_tiny, or --attention soft")
    return found


def newton_errors(matrix: Tensor, step: Tensor, iterations: int) -> Tensor:
    """||A A_k A - A|| / ||A|| for k = 0 to `iterations`: (..., m, m) -> (..., iterations + 1)."""
    inverse = step * matrix
    errors = [convergence(matrix, inverse)]
    for _ in range(iterations):
        inverse = 2 * inverse - inverse @ matrix @ inverse
        errors.append(convergence(matrix, inverse))
    return torch.stack(errors, -1)


def condition_number(matrix: Tensor) -> Tensor:
    """The largest over the smallest eigenvalue, in float64; infinite where the smallest is not above rounding."""
    values = torch.linalg.eigvalsh(matrix.double()).abs()
    least, most = values.amin(-1), values.amax(-1)
    noise = most * matrix.shape[-1] * torch.finfo(torch.float64).eps
    return torch.where(least > noise, most / least, torch.inf)


def study_newton(subjects: Sequence[Subject], iterations: int = 20, tick: Tick = no_tick) -> Study:
    """||A A_k A - A|| / ||A|| against k: mean and range over images, by layer, and condition numbers.

    Raises:
        InputError: a model has no SOFT blocks.
    """
    for subject in subjects:  # before any image is read
        if not any(isinstance(module, Core) and module.inverts for module in subject.model.modules()):
            raise InputError(f"{subject.title} has no SOFT blocks; choose --model soft_tiny, or --attention soft")
    results: list[Facts] = []
    rows: list[list[str]] = []
    curves, bands = {}, {}
    for subject in subjects:
        layers: list[Facts] = []
        for items in over_images(subject, lambda blocks: measure_newton(blocks, iterations), tick):
            block, landmarks = items[0].block, items[0].landmarks
            errors = torch.stack([item.errors.mean(0) for item in items])  # images, k + 1
            conditions = torch.cat([item.conditions for item in items])
            at, least, most = errors.mean(0), errors.amin(0), errors.amax(0)
            median, highest = float(conditions.median()), float(conditions.max())
            layers.append({
                "block": block, "landmarks": landmarks, "mean": at.tolist(), "least": least.tolist(),
                "most": most.tolist(),
                "condition": {"median": median, "least": float(conditions.min()), "most": highest},
            })  # fmt: skip
            shown = (at[0], at[iterations // 2], at[-1], most[-1], median, highest)
            rows.append([subject.title, short(block), str(landmarks), *(f"{value:.3g}" for value in shown)])
            label = f"{subject.title}, {short(block)}" if len(subjects) > 1 else short(block)
            mean, *band = (each.clamp(min=1e-12).tolist() for each in (at, least, most))  # for a logarithmic axis
            curves[label], bands[label] = (range(iterations + 1), mean), (band[0], band[1])
        results.append({"title": subject.title, "layers": layers})
    figure = new_figure(WIDE, HIGH)
    axis = figure.subplots()
    draw_lines(axis, curves, bands)
    axis.set_yscale("log")
    finish(axis, "Newton iteration of the inverse", "step k", "||A A_k A - A|| / ||A||")
    return Study(
        "newton", "Convergence of the Newton iteration (SOFT, Fig. 5)",
        {"iterations": iterations, "subjects": results}, {"newton": figure},
        ("model", "layer", "landmarks", "error at k = 0", f"at k = {iterations // 2}", f"at k = {iterations}",
         "worst image", "condition, median", "condition, most"), rows,
        ["A is the matrix that the layer inverts: SOFT adds 0.01 to its diagonal, SOFT++ does not. Mean over heads and "
         "images in float32, as the model runs it; the band is the range over images. Condition numbers are taken in "
         "float64, over images and heads."],
    )  # fmt: skip
