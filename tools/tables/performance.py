"""docs/performance.md: what plain calls give; graph replay in five sentences with three figures; how it is measured."""

from collections.abc import Sequence
from pathlib import Path

from sightline.bench import Row
from sightline.bench.operators import SDPA
from sightline.bench.tables import pick
from tables.bench import NOTHING, load_reports, speed_section
from tables.plain import plain_section

METHOD = """## How the numbers are measured

- All candidates in a table row ran in the same process and took turns. *graph* and *GPU* are the time by CUDA-graph
  replay, which leaves out launch overhead, *calls* by plain calls until the GPU is done. A time is the median of
  several rounds; where plain calls are compared, of at least seven after a second of warm-up. *host* is the time until
  the host can go on, over 20 calls that begin with an empty queue.
- *floor* is the time to move the operator's tensors once (4 forward, 11 forward and backward, and the weights of the
  residual; 3 and 8 for SOFT, whose queries are its keys) at the copy speed measured in the same run.
- *sdpa* is torch's scaled_dot_product_attention. *move* is plain torch code that moves as many
  tensors as the floor assumes.
- *limit* is the same network with its attention removed: values go straight to the projection.
- Every operator was compared with the float32 reference, output and gradients, before it was timed.
- Inference keeps its weights in the dtype of the table. A training step is autocast, cross entropy, backward and fused
  AdamW on float32 weights, with a quarter of the batch (SOFT: half, as published).
"""


def performance_page(folder: Path) -> str:
    """The whole page."""
    parts = ["# Performance", "Generated from the files in `results/` by `make tables`; do not edit by hand."]
    reports = load_reports(folder)
    if plain := plain_section(folder):
        parts += [plain, "## Kernels, by graph replay"]
    if not reports:
        return "\n\n".join([*parts, NOTHING]) + "\n"
    parts += opening([row for report in reports.values() for row in report if row.device == "cuda" and row.ms])
    more = (
        "All measurements and goals: [performance_tables.md](performance_tables.md). What was tried on the "
        "way to these kernels: [performance_log.md](performance_log.md)."
    )
    speed = speed_section(folder, "performance_tables.md")
    return "\n\n".join([*parts, more, METHOD.strip(), "## Speed", speed]) + "\n"


def opening(rows: Sequence[Row]) -> list[str]:
    """Five sentences and three figures, if the results have the rows that they are about."""
    ops = sorted((r for r in rows if _is(r, "inline triton", "forward+backward") and (r.heads, r.dim) == (6, 32)),
                 key=lambda r: r.tokens or 0)  # fmt: skip
    models = [r for r in rows if _is(r, "inline_deit_tiny", "forward") and r.compiled and r.dtype == "bfloat16"]
    steps = [r for r in rows if _is(r, "inline_deit_tiny", "train") and r.compiled and r.dtype == "bfloat16"]
    soft = sorted((r for r in rows if _is(r, "soft triton", "forward+backward")), key=lambda r: r.tokens or 0)
    if not (ops and models and steps and soft):
        return []
    first, last = models[0], models[-1]
    train_first, train_last = steps[0], steps[-1]
    return [
        f"With backward, InLine attention is {_over(rows, ops[0]):.1f} times as fast as torch's SDPA at "
        f"{ops[0].tokens:,} tokens and {_over(rows, ops[-1]):.0f} times at {ops[-1].tokens:,}; SOFT with "
        f"49 landmarks is {_over(rows, soft[0]):.1f} times as fast at {soft[0].tokens:,} and "
        f"{_over(rows, soft[-1]):.0f} times at {soft[-1].tokens:,}.",
        "![Time of operators against tokens](images/operators.png)",
        f"A compiled `inline_deit_tiny` is {_over(rows, first):.1f} times as fast as timm's DeiT-Tiny at "
        f"{first.height} px and {_over(rows, last):.1f} times at {last.height} px by CUDA-graph replay. Its "
        f"training step is {_over(rows, train_first):.1f} and {_over(rows, train_last):.1f} times as fast.",
        "![Throughput of models against resolution](images/throughput.png)",
        "Memory grows linearly with the tokens for all of them, softmax included, because SDPA never stores its "
        "matrix; SOFT's kernels need about a third of the memory of its reference. Launch overhead depends on the "
        "machine, so measure on yours: `sightline bench models --plot`.",
        "![Memory against size](images/memory.png)",
    ]


def _is(row: Row, candidate: str, mode: str) -> bool:
    return row.candidate == candidate and row.mode == mode


def _over(rows: Sequence[Row], row: Row) -> float:
    """How many times as fast as softmax."""
    other = pick(rows, row, lambda name: name == SDPA or name.startswith("timm "))
    assert other is not None
    assert row.ms
    assert other.ms
    return other.ms / row.ms
