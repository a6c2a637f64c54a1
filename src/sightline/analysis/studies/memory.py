"""Peak memory against sequence length (SOFT's Fig. 1b)."""

from collections.abc import Callable, Mapping, Sequence

import torch

from sightline.analysis.charts import draw_curves
from sightline.analysis.figures import new_figure
from sightline.analysis.memory import BLOCKS, HEADS, METHODS, MODES, WIDTH, Peak, measure_peak
from sightline.analysis.studies.study import Facts, Study

MIB = 2**20


def study_memory(
    factors: Sequence[int] = range(1, 9),
    methods: Mapping[str, str] = METHODS,
    device: torch.device | str = "cpu",
    tick: Callable[[str], None] = lambda _: None,
) -> Study:
    """The peak of every method at 784 p tokens for every p in `factors`, without and with the backward pass."""
    found: list[Peak] = []
    for method, mechanism in methods.items():
        for p in factors:
            found += [measure_peak(method, mechanism, p, mode, device) for mode in MODES]
            tick(f"{method}, {784 * p} tokens")
    counted = torch.device(device).type != "cuda"
    figure = new_figure(11, 4.2)
    axes = figure.subplots(1, 2)
    for axis, mode in zip(axes, MODES, strict=True):
        curves = {m: _curve(found, m, mode) for m in methods}
        draw_curves(axis, mode, "tokens", "peak memory, MiB", curves, base=2)
        axis.set_xscale("log", base=2)
        axis.set_xticks([784 * p for p in factors], [f"{784 * p}" for p in factors], rotation=45)
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    how = (
        "Counted: bytes of all tensors that are alive at once, weights included, by running the operators on tensors "
        "without data; scratch space inside kernels is not in it."
        if counted
        else "Measured: the peak of the CUDA allocator, weights included."
    )
    facts: Facts = {
        "blocks": BLOCKS, "width": WIDTH, "heads": HEADS, "batch": 1, "landmarks": 49, "dtype": "float32",
        "how": "counted" if counted else "allocated", "peaks": [vars(peak) for peak in found],
    }  # fmt: skip
    return Study(
        "memory", "Peak memory against sequence length (SOFT, Fig. 1b)", facts, {"memory": figure},
        ("method", "mode", *(f"{784 * p} tokens" for p in factors)), _rows(found, methods),
        [f"MiB. {BLOCKS} blocks of width {WIDTH} with {HEADS} heads, batch 1, float32. {how} Softmax keeps its matrix "
         "in the paper's figure; torch's own does not."],
    )  # fmt: skip


def _curve(found: Sequence[Peak], method: str, mode: str) -> tuple[list[float], list[float]]:
    points = [(p.tokens, p.peak / MIB) for p in found if (p.method, p.mode) == (method, mode) and p.peak is not None]
    return [float(tokens) for tokens, _ in points], [value for _, value in points]


def _rows(found: Sequence[Peak], methods: Mapping[str, str]) -> list[list[str]]:
    return [
        [method, mode, *("-" if p.peak is None else f"{p.peak / MIB:,.0f}" for p in found
                         if (p.method, p.mode) == (method, mode))]
        for mode in MODES
        for method in methods
    ]  # fmt: skip
