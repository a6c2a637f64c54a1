"""docs/performance.md: five sentences with three figures, then how the numbers are made."""

from pathlib import Path

from tables.bench import NOTHING, load_reports, speed_section

METHOD = """## How the numbers are made

- All candidates of a table row ran in the same process, in turns. *graph* is the time by CUDA-graph replay, which
  leaves out launch overhead, *calls* by plain calls. A time is the median of several rounds.
- *floor* is the time to move the operator's tensors once (4 forward, 11 forward and backward, and the weights of the
  residual; 3 and 8 for SOFT, whose queries are its keys) at the copy speed that the same run measured.
- *sdpa* is torch's scaled_dot_product_attention. *move* is plain torch that moves as many tensors as the floor counts.
- *limit* is the same network with its attention removed: values go straight to the projection.
- Every operator was compared with the float32 reference, output and gradients, before it was timed.
- Inference keeps its weights in the dtype of the table. A training step is autocast, cross entropy, backward and fused
  AdamW on float32 weights, with a quarter of the batch (SOFT: half, as published).
"""


def performance_page(folder: Path) -> str:
    """The whole page."""
    parts = ["# Performance", "Generated from the files in `results/` by `make tables`; do not edit by hand."]
    if not load_reports(folder):
        return "\n\n".join([*parts, NOTHING]) + "\n"
    more = "All rows of all runs: [performance_tables.md](performance_tables.md). What was tried on the way to these " \
           "kernels: [performance_log.md](performance_log.md)."  # fmt: skip
    speed = speed_section(folder).replace("(docs/performance.md)", "(performance_tables.md)")
    return "\n\n".join([*parts, METHOD.strip(), "## Speed", speed, more]) + "\n"
