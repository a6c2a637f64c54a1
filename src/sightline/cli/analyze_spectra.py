"""`sightline analyze newton`, `rank` and `memory`: the inverse of SOFT, the rank of attention, and what it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.cli.analyze_options import Output, Pictures
from sightline.cli.options import Command, UsageError, option

if TYPE_CHECKING:
    from sightline.cli.analyze_models import Loaded

LONGEST = 8


@dataclass(frozen=True, kw_only=True)
class NewtonOptions(Pictures):
    """Measure how fast SOFT's Newton iteration converges: ||A A_k A - A|| / ||A|| against k, and condition numbers."""

    iterations: int = option("steps; by default 20", default=20, metavar="K")


def run_newton(options: NewtonOptions) -> None:
    from sightline.analysis.studies.newton import study_newton
    from sightline.cli.analyze_run import look

    look(
        "newton",
        options,
        lambda subjects, tick: [study_newton(subjects, options.iterations, tick)],
        check=has_soft,
    )


def has_soft(models: "Sequence[Loaded]") -> None:
    """Refuse models without SOFT blocks before any image is read."""
    from sightline.layers.mechanisms.soft import SoftCore

    for item in models:
        if not any(isinstance(module, SoftCore) for module in item.model.modules()):
            raise UsageError(f"{item.title} has no SOFT blocks; choose --model soft_tiny, or --attention soft")


@dataclass(frozen=True, kw_only=True)
class RankOptions(Pictures):
    """Measure the effective rank of attention by layer: the exponential of the entropy of its singular values.

    Linear attention, InLine and SOFT go through their thin factors, without an N x N matrix; others through their rows,
    at most --rows of them a window.
    """

    rows: int = option("rows of a window, where there are no factors; by default 1024", default=1024, metavar="N")


def run_rank(options: RankOptions) -> None:
    from sightline.analysis.studies.rank import study_rank
    from sightline.cli.analyze_run import look

    look("rank", options, lambda subjects, tick: [study_rank(subjects, options.rows, tick)])


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Output):
    """Measure peak memory against sequence length: 12 blocks, width 384, 12 heads, 49 landmarks, batch 1, 784 p tokens.

    On CUDA it is the allocator's peak, on a CPU the bytes of live tensors, counted without computing.
    """

    longest: int = option(f"largest p; by default {LONGEST}", default=LONGEST, metavar="P")
    attention: tuple[str, ...] = option(
        "mechanism, such as inline or soft(landmarks=49); may be repeated; by default the five of SOFT's Fig. 1b",
        default=(), metavar="NAME",
    )  # fmt: skip


def run_memory(options: MemoryOptions) -> None:
    from sightline.analysis.memory import METHODS
    from sightline.analysis.studies.memory import study_memory
    from sightline.cli.analyze_output import about, finish
    from sightline.cli.analyze_run import begin
    from sightline.cli.output import Progress
    from sightline.layers.spec import Spec

    device = begin(options)
    methods = {name: str(Spec.parse(name)) for name in options.attention} or METHODS
    with Progress("lengths", len(methods) * options.longest) as progress:
        study = study_memory(range(1, options.longest + 1), methods, device, progress.step)
    finish(options.out, about("memory", device, (), None), [study], (), options.json)


NEWTON = Command(
    NewtonOptions,
    run_newton,
    help="convergence of SOFT's inverse",
    examples=(
        "  sightline analyze newton --checkpoint soft.pth --data photos --limit 100\n"
        "  sightline analyze newton --model soft_norm_tiny --data embedded"
    ),
)
RANK = Command(
    RankOptions,
    run_rank,
    help="effective rank of attention, by layer",
    examples=(
        "  sightline analyze rank --checkpoint runs/quick\n"
        "  sightline analyze rank --data photos --attention softmax --attention linear"
    ),
)
MEMORY = Command(
    MemoryOptions,
    run_memory,
    help="peak memory against sequence length",
    examples=(
        "  sightline analyze memory\n  sightline analyze memory --attention inline --attention softmax --longest 4"
    ),
)
