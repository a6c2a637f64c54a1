"""Results of a run: rows, and the files that hold them with the commit, the command and the machine."""

import csv
import dataclasses
import io
import itertools
import json
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypedDict

import torch

from sightline.util.errors import FileError
from sightline.util.files import jsonable, write_text
from sightline.util.provenance import boot_id, machine_name, package_version, source_commit

# As written to files.
OK, REJECTED, NO_MEMORY, FAILED, MISSING = "ok", "refused", "out of memory", "failed", "not installed"
FILE_NAMES = {"candidate": "entrant"}  # fields that have another name in files
EAGER, COMPILED = "eager", "compile"  # ways to call; others are named by the mode of torch.compile
SERIES = ("commit", "clean", "card", "host", "threads", "python", "torch", "cuda", "triton", "timm")


class About(TypedDict, total=False):
    """How to measure again: command, commit, versions, machine. `card` is the GPU, or the processor and its threads;
    `host` is different after every start of the machine."""

    preset: str
    command: str
    commit: str
    clean: bool | None
    date: str
    card: str
    host: str
    device: str
    threads: int
    python: str
    torch: str
    cuda: str | None
    triton: str | None
    timm: str | None
    ceilings: dict[str, dict[str, float]]


@dataclass
class Row:
    """One candidate in one case. Times in milliseconds, memory in MiB, `error` against the float32 reference.

    `graph_ms` is the time by CUDA-graph replay, `call_ms` by plain calls, `host_ms` the part of it that the host takes;
    `floor_ms` is the time to move the operator's tensors once at the copy speed of the same run, and `of_floor` the
    ratio to it. Rows of the preset "plain" compare plain calls: the time by graph replay is their `gpu_ms`. `over_timm`
    and `of_none` are speeds relative to timm's model and to the same network without attention.
    """

    kind: str  # "op", "module", "model", or "run" for a whole training run
    case: str
    candidate: str
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
    compile_mode: str = ""  # of torch.compile
    status: str = OK
    note: str = ""
    graph_ms: float | None = None
    call_ms: float | None = None
    host_ms: float | None = None
    gpu_ms: float | None = None
    spread: float | None = None
    images_per_s: float | None = None
    over_timm: float | None = None
    of_none: float | None = None
    floor_ms: float | None = None
    of_floor: float | None = None
    bandwidth_tb_s: float | None = None
    memory_mib: float | None = None
    params: int | None = None
    gflop: float | None = None
    tflop_s: float | None = None
    error: float | None = None

    @property
    def ms(self) -> float | None:
        """The time to compare by: graph replay if there is one, otherwise plain calls."""
        return self.call_ms if self.graph_ms is None else self.graph_ms

    @property
    def how(self) -> str:
        """How it is called: "eager", "compile" or a mode of torch.compile."""
        return (self.compile_mode or COMPILED) if self.compiled else EAGER

    def like(self, other: "Row") -> bool:
        """Whether both do the same work: case, mode, dtype, device, and how they are called."""
        names = ("kind", "case", "mode", "how", "dtype", "device")
        return all(getattr(self, name) == getattr(other, name) for name in names)


@dataclass
class Finding:
    """A measurement that is not a time per call; `limit` is the goal, which the value must not exceed."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""


@dataclass
class Report:
    """A run: its rows, its findings, how it was made (`about`) and its files. Iterating gives the rows."""

    about: About
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def failures(self) -> list[str]:
        """One line per rejected or failed candidate. Running out of memory is a result, not a failure."""
        wrong = [row for row in self.rows if row.status in (REJECTED, FAILED)]
        lines = [f"{row.status}: {row.note or row.candidate}" for row in wrong]
        return lines + [f"{item.name}: {item.note}" for item in self.findings if item.unit == "failure"]

    def to_json(self) -> str:
        rows, findings = ([_entry(item) for item in items] for items in (self.rows, self.findings))
        return json.dumps(jsonable({"about": self.about, "rows": rows, "findings": findings}), indent=1) + "\n"

    def to_csv(self) -> str:
        """One line per row; the last columns give its origin."""
        origin = {key: self.about.get(key, "") for key in ("commit", "torch", "card", "date", "command")}
        names = [FILE_NAMES.get(item.name, item.name) for item in dataclasses.fields(Row)]
        text = io.StringIO()
        writer = csv.DictWriter(text, [*names, *origin], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**_entry(row), **origin} for row in self.rows)
        return text.getvalue()

    def write(self) -> None:
        """Bring the JSON and the CSV file, if any, up to date; they are complete at any time."""
        for path, make in zip(self.files, (self.to_json, self.to_csv), strict=False):
            write_text(path, make())

    def extend(self, path: Path, measured: Sequence[tuple[object, ...]]) -> bool:
        """Take over what another run has in its file and this one will not measure; false if it is of another series.

        A series has one machine, one commit and one set of versions, or its figures could not be compared. `measured`
        lists kind, case, mode and dtype of what this run measures.
        """
        other = Report.read(path)
        if any(other.about.get(key) != self.about.get(key) for key in SERIES):
            return False
        self.rows = [row for row in other.rows if (row.kind, row.case, row.mode, row.dtype) not in measured]
        self.findings = other.findings
        commands = other.about["command"].split("; ")
        if self.about["command"] not in commands:
            commands.append(self.about["command"])
        self.about = {**other.about, **self.about, "command": "; ".join(commands)}
        return True

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Read a JSON file of a run.

        Raises:
            FileError: it is something else.
        """
        fields = {name: key for key, name in FILE_NAMES.items()}
        try:
            data = json.loads(path.read_text())
            rows = [Row(**{fields.get(key, key): value for key, value in row.items()}) for row in data["rows"]]
            about: About = {**data["about"]}
            return cls(about, rows, [Finding(**item) for item in data["findings"]])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path}: not a result of `sightline bench` ({error}); measure again") from error


def _entry(item: Row | Finding) -> dict[str, object]:
    """The fields as they are written, to five digits."""
    values = {FILE_NAMES.get(key, key): value for key, value in asdict(item).items()}
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in values.items()}


def result_files(folder: Path, stem: str, replace: bool = False) -> list[Path]:
    """The JSON and the CSV file of a run, numbered if they exist and are not to be replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    pairs = ([folder / f"{name}.json", folder / f"{name}.csv"] for name in names)
    return next(pair for pair in pairs if replace or not any(path.exists() for path in pair))


def file_stem(what: str, dtypes: Sequence[str], about: About) -> str:
    """The name of the files of a run: what, dtypes, torch and GPU."""
    release = about["torch"].partition("+")[0]
    parts = (what, "+".join(dtypes), f"torch{release}", about["card"])
    return "-".join(re.sub(r"[^a-z0-9.+]+", "_", part.lower()).strip("_") for part in parts)


def describe_run(command: str, device: torch.device) -> About:
    """What is needed to measure again."""
    commit, clean = source_commit()
    return {
        "command": command,
        "commit": commit or "unknown",
        "clean": clean,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "card": machine_name(device.type),
        "host": boot_id(),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": package_version("triton"),
        "timm": package_version("timm"),
    }
