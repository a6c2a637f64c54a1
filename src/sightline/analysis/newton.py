"""Convergence of the Newton iteration (SOFT's Fig. 5): ||A A_k A - A|| / ||A|| against k, and condition numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall
from sightline.analysis.figures import HIGH, WIDE, draw_lines, finish, new_figure
from sightline.analysis.study import Facts, Study, Subject, by_layer, short, titled
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
        raise InputError("this model has no SOFT blocks; choose one, such as soft_tiny, or one with attention=soft")
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


def study_newton(subjects: Sequence[Subject], iterations: int = 20) -> Study:
    """||A A_k A - A|| / ||A|| against k: mean and range over images, by layer, and condition numbers.

    Raises:
        InputError: a model has no SOFT blocks.
    """
    for subject in subjects:  # before any image is read
        if not any(isinstance(module, Core) and module.inverts for module in subject.model.modules()):
            raise InputError(f"{subject.title} has no SOFT blocks; choose soft_tiny, or attention soft")
    layers = by_layer(subjects, lambda blocks: measure_newton(blocks, iterations), _summarize)
    rows: list[list[str]] = []
    curves, bands = {}, {}
    for title, each in layers.items():
        for at in each:
            errors, most, condition = at["mean"], at["most"], at["condition"]
            shown = (errors[0], errors[iterations // 2], errors[-1], most[-1], condition["median"], condition["most"])
            rows.append([title, short(at["block"]), str(at["landmarks"]), *(f"{value:.3g}" for value in shown)])
            label = f"{title}, {short(at['block'])}" if len(subjects) > 1 else short(at["block"])
            mean, *band = ([max(value, 1e-12) for value in at[key]] for key in ("mean", "least", "most"))  # for a log
            curves[label], bands[label] = (range(iterations + 1), mean), (band[0], band[1])
    figure = new_figure(WIDE, HIGH)
    axis = figure.subplots()
    draw_lines(axis, curves, bands)
    axis.set_yscale("log")
    finish(axis, "Newton iteration of the inverse", "step k", "||A A_k A - A|| / ||A||")
    return Study(
        "newton", "Convergence of the Newton iteration (SOFT, Fig. 5)",
        {"iterations": iterations, "subjects": titled(layers)}, {"newton": figure},
        ("model", "layer", "landmarks", "error at k = 0", f"at k = {iterations // 2}", f"at k = {iterations}",
         "worst image", "condition, median", "condition, most"), rows,
        ["A is the matrix that the layer inverts: SOFT adds 0.01 to its diagonal, SOFT++ does not. Mean over heads and "
         "images in float32, as the model runs it; the band is the range over images. Condition numbers are taken in "
         "float64, over images and heads."],
    )  # fmt: skip


def _summarize(items: Sequence[Newton]) -> Facts:
    """The facts of a layer from its iterations in all images."""
    errors = torch.stack([item.errors.mean(0) for item in items])  # images, k + 1
    conditions = torch.cat([item.conditions for item in items])
    return {
        "block": items[0].block, "landmarks": items[0].landmarks, "mean": errors.mean(0).tolist(),
        "least": errors.amin(0).tolist(), "most": errors.amax(0).tolist(),
        "condition": {
            "median": float(conditions.median()), "least": float(conditions.min()), "most": float(conditions.max()),
        },
    }  # fmt: skip
