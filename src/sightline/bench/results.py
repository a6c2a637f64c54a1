"""What a run gives: rows, and the files that hold them with the commit, the command and the machine."""

import csv
import dataclasses
import io
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sightline.util.files import write_text
from sightline.util.provenance import source_commit

OK, REFUSED, NO_MEMORY, FAILED = "ok", "refused", "out of memory", "failed"


@dataclass
class Row:
    """One entrant in one case. Times in milliseconds, memory in MiB, `error` against the float32 reference.

    `graph_ms` is the time by CUDA-graph replay, `call_ms` by plain calls; `floor_ms` what moving the operator's tensors
    once takes at the copy ceiling of the same run, and `of_floor` the ratio to it.
    """

    kind: str  # "op" or "model"
    case: str
    entrant: str
    mode: str
    compiled: bool
    dtype: str
    device: str
    batch: int
    tokens: int | None = None
    heads: int | None = None
    dim: int | None = None
    height: int | None = None
    width: int | None = None
    window: int | None = None
    status: str = OK
    note: str = ""
    graph_ms: float | None = None
    call_ms: float | None = None
    spread: float | None = None
    images_per_s: float | None = None
    floor_ms: float | None = None
    of_floor: float | None = None
    bandwidth_tb_s: float | None = None
    memory_mib: float | None = None
    gflop: float | None = None
    tflop_s: float | None = None
    error: float | None = None

    @property
    def ms(self) -> float | None:
        """The time to compare by: graph replay where there is one, plain calls elsewhere."""
        return self.call_ms if self.graph_ms is None else self.graph_ms


@dataclass
class Finding:
    """A measure that is not a time per call; `limit` is the goal, which the value must not pass."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""


@dataclass
class Report:
    """A run: what it was (`about`), its rows, its findings."""

    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> str:
        data = {"about": self.about, "rows": [_rounded(asdict(row)) for row in self.rows]}
        data["findings"] = [_rounded(asdict(finding)) for finding in self.findings]
        return json.dumps(data, indent=1) + "\n"

    def to_csv(self) -> str:
        """A line a row; the last columns say where it comes from."""
        origin = {key: self.about.get(key, "") for key in ("commit", "torch", "card", "date", "command")}
        names = [item.name for item in dataclasses.fields(Row)]
        text = io.StringIO()
        writer = csv.DictWriter(text, [*names, *origin], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**_rounded(asdict(row)), **origin} for row in self.rows)
        return text.getvalue()

    @classmethod
    def read(cls, path: Path) -> "Report":
        """A file that `write` made; raises ValueError with one line for anything else."""
        try:
            data = json.loads(path.read_text())
            rows, findings = [Row(**row) for row in data["rows"]], [Finding(**item) for item in data["findings"]]
            return cls(dict(data["about"]), rows, findings)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a result of `sightline bench` ({error}); measure again") from error


def _rounded(data: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in data.items()}


class Writer:
    """Keeps the files of a run up to date: after every row, under their own names only when whole."""

    def __init__(self, folder: Path, stem: str, replace: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.json, self.csv = self._free(folder, stem, replace)

    def _free(self, folder: Path, stem: str, replace: bool) -> tuple[Path, Path]:
        number = 1
        while True:
            name = stem if number == 1 else f"{stem}-{number}"
            paths = folder / f"{name}.json", folder / f"{name}.csv"
            if replace or not any(path.exists() for path in paths):
                return paths
            number += 1

    def write(self, report: Report) -> None:
        for path, text in ((self.json, report.to_json()), (self.csv, report.to_csv())):
            write_text(path, text)


def file_stem(what: str, dtypes: Sequence[str], about: dict[str, Any]) -> str:
    """The name of the files of a run: what, dtype, torch and card."""
    release = str(about["torch"]).partition("+")[0]
    parts = (what, "+".join(dtypes), f"torch{release}", str(about["card"]))
    return "-".join(re.sub(r"[^a-z0-9.+]+", "_", part.lower()).strip("_") for part in parts)


def describe_run(command: str, device: torch.device) -> dict[str, Any]:
    """What must be known to measure again: commit, command, versions, machine."""
    commit, clean = source_commit()
    return {
        "command": command,
        "commit": commit or "unknown",
        "clean": clean,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "card": card_name(device),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "timm": _version("timm"),
    }


def card_name(device: torch.device) -> str:
    """The name of the accelerator, or the processor and its threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} cpu {torch.get_num_threads()} threads"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
