"""A run: plans one after another, each row written as soon as it is known."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sightline.bench import run_models, run_ops
from sightline.bench.ceilings import Ceilings, measure_ceilings
from sightline.bench.cold_start import measure_surprises
from sightline.bench.results import FAILED, REFUSED, Finding, Report, Row, Writer
from sightline.bench.run_models import ModelPlan, compile_ahead
from sightline.bench.run_ops import OpPlan


class Session:
    """Measures plans on a device and keeps the report and its files up to date.

    Args:
        report: takes the rows; its `about` takes the ceilings of the machine.
        writer: keeps the files.
        device: where to measure.
        budget_ms: time for each entrant after warm-up, and again for graph replay.
    """

    def __init__(self, report: Report, writer: Writer, device: torch.device, budget_ms: float) -> None:
        self.report, self.writer, self.device, self.budget_ms = report, writer, device, budget_ms
        self._ceilings: dict[str, Ceilings] = {}

    def ceilings(self, dtype: str) -> Ceilings:
        """Measured once a run and type, when first needed."""
        if dtype not in self._ceilings:
            self._ceilings[dtype] = found = measure_ceilings(self.device, dtype, self.budget_ms)
            self.report.about.setdefault("ceilings", {})[dtype] = found.as_dict()
        return self._ceilings[dtype]

    def run(self, plan: OpPlan | ModelPlan) -> list[Row]:
        """Measure a plan, and write."""
        ceilings = self.ceilings(plan.dtype)
        if isinstance(plan, OpPlan):
            rows = run_ops.run_plan(plan, self.device, ceilings, self.budget_ms)
        else:
            rows = run_models.run_plan(plan, self.device, self.budget_ms)
        self.report.rows += rows
        self.writer.write(self.report)
        return rows

    def surprise(self, mechanism: str, dtype: str, **options: Any) -> list[Finding]:
        """Measure what should not surprise, and write; a failure is a finding too."""
        try:
            found = measure_surprises(mechanism, dtype, self.device, **options)
        except Exception as error:  # the rest of the run goes on
            note = " ".join(str(error).split())[:200]
            found = [Finding(f"{mechanism} {dtype}: not measured", 1, "failure", 0, note)]
        self.report.findings += found
        self.writer.write(self.report)
        return found

    def compile_ahead(self, plans: Sequence[OpPlan | ModelPlan], jobs: int, done: Callable[[str], None]) -> None:
        """Compile models in several processes, before anything is timed."""
        compile_ahead([plan for plan in plans if isinstance(plan, ModelPlan)], self.device, jobs, done)


def went_wrong(rows: Sequence[Row]) -> list[Row]:
    """Rows that make a run fail: refused or broken entrants. Memory that did not suffice is a result."""
    return [row for row in rows if row.status in (REFUSED, FAILED)]
