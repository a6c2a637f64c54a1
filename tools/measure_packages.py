"""Compiled packages next to torch.compile of the same graph: a table of docs/export.md.

    python tools/measure_packages.py [--out packages.json]                             # on a GPU, minutes
    python tools/measure_packages.py --device cpu --cases inline_deit_tiny:64:2:batch:float32          # a trial

A case is MODEL:SIZE:BATCH:AXES:DTYPE. Both forms of every case are made at once, each in a process of its own; then all
wait, and one at a time is measured, in turns. A third process, which cannot import sightline, runs the package once.
What is not ready after `--limit` seconds is left out. Rows of `--out` that are not measured again are kept. The exit
status is 1 if a package is more than 5 % slower, has kernels that need sightline, or is missing.
"""

import argparse
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

CASES = (
    "inline_deit_tiny:224:256:batch:float32",
    "inline_deit_tiny:224:256:batch:float16",
    "inline_deit_tiny:1024:16:batch:float16",
    "inline_swin_tiny:224:128:batch:float16",
    "inline_pvt_tiny:224:128:batch:float16",
    "inline_cswin_tiny:224:128:batch:float16",
    "soft_tiny:224:128:batch:float16",
    "inline_deit_tiny:224:256:batch+height+width:float32",
    "inline_pvt_tiny:224:128:batch+height+width:float16",
)
FORMS = ("package", "compiled")
ROUNDS, SECONDS = 5, 0.3
SLOWER = 1.05
ALONE = """
import sys, torch
sys.modules["sightline"] = None
data = torch.load(sys.argv[1], weights_only=True)
(got,) = torch._inductor.aoti_load_package(sys.argv[2])(data["x"])
print((got - data["want"]).abs().max().item() / max(1, data["want"].abs().max().item()))
"""


def make(form: str, case: str, folder: Path, device: str) -> None:
    """Make one form of a case, print its facts as JSON, and measure a round for every line of input."""
    start = time.perf_counter()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    import torch

    import sightline
    from sightline.hub import exporting

    exporting.SECONDS = 0.0
    name, size, batch, axes, dtype = case.split(":")
    half = dtype == "float16"
    torch.manual_seed(0)
    model = sightline.create_model(name, img_size=int(size)).eval().to(device)
    x = torch.randn(int(batch), 3, int(size), int(size), device=device)
    facts: dict[str, Any] = {}
    call: Any
    if form == "package":
        target = folder / "model.pt2"
        done = exporting.export(model, target, dynamic=axes.split("+"), half=half, device=device)
        facts = {"difference": max(check.difference for check in done.checks), **contents(target)}
        with torch.no_grad():
            torch.save({"x": x[:2], "want": model(x[:2])}, folder / "data.pt")
        facts["alone"], facts["alone_error"] = alone(folder)
        call = torch._inductor.aoti_load_package(str(target))
    else:
        call = torch.compile(exporting.Graph(model, half).eval())

    def run(seconds: float) -> float:
        calls, begin = 0, 0.0
        with torch.no_grad():
            while calls <= 3 or time.perf_counter() - begin < seconds:
                call(x)
                calls += 1
                if device == "cuda" and (calls == 3 or calls % 5 == 3):
                    torch.cuda.synchronize()
                if calls == 3:
                    begin = time.perf_counter()
            if device == "cuda":
                torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / (calls - 3)

    run(0.0)
    print(json.dumps({**facts, "seconds": time.perf_counter() - start}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(run(SECONDS)), flush=True)


def contents(path: Path) -> dict[str, int]:
    """Compiled kernels in a package, and mentions of operators that only sightline has."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        texts = [archive.read(name).decode(errors="replace") for name in names if name.endswith((".cpp", ".json"))]
    opaque = sum(len(re.findall(r"sightline::\w+", text)) for text in texts)
    return {"kernels": sum(name.endswith(".cubin") for name in names), "opaque": opaque}


def alone(folder: Path) -> tuple[float | None, str | None]:
    """The difference that a process without sightline finds, or the last line of its error."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
    }
    command = [sys.executable, "-c", ALONE, str(folder / "data.pt"), str(folder / "model.pt2")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode == 0:
        return float(done.stdout), None
    return None, (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:160]


class Worker:
    """A process that makes one form of a case."""

    def __init__(self, form: str, case: str, folder: Path, device: str) -> None:
        folder.mkdir(parents=True)
        self.log = folder / "log.txt"
        command = [sys.executable, __file__, "--device", device, "--make", form, case, str(folder)]
        # Inductor would start a process per core for each of them.
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ}
        with self.log.open("w") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self.process = subprocess.Popen(command, text=True, bufsize=1, env=environment, **pipes)

    def answer(self, seconds: float) -> Any:
        """Its next line of JSON; None if it ended or is late, and then it is killed."""
        end, output = time.perf_counter() + seconds, self.process.stdout
        assert output is not None
        while select.select([output], [], [], max(0.0, end - time.perf_counter()))[0]:
            line = output.readline()
            if line[:1] in tuple("{0123456789"):
                return json.loads(line)
            if not line:
                break
        self.process.kill()
        return None

    def measure(self) -> float | None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
        except BrokenPipeError:
            return None
        return self.answer(30.0)

    def end(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()

    def error(self) -> str:
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        return (lines or ["late"])[-1][:160]


def measure(cases: list[str], folder: Path, device: str, limit: float) -> list[dict[str, Any]]:
    """All cases: made in parallel, measured in turns."""
    end = time.perf_counter() + limit
    workers = {(f, c): Worker(f, c, folder / f"{i}-{f}", device) for i, c in enumerate(cases) for f in FORMS}
    facts = {key: worker.answer(end - time.perf_counter()) for key, worker in workers.items()}
    print(f"{sum(fact is not None for fact in facts.values())} of {len(facts)} made; measuring", flush=True)
    rows = []
    for case in cases:
        name, size, batch, axes, dtype = case.split(":")
        ready = [form for form in FORMS if facts[form, case] is not None]
        rounds = [{form: workers[form, case].measure() for form in ready} for _ in range(ROUNDS)]
        empty = {"difference": None, "alone": None, "kernels": None, "opaque": None}
        row = {
            "model": name,
            "size": int(size),
            "batch": int(batch),
            "dynamic": axes.replace("+", ", "),
            "dtype": dtype,
        }
        found = dict(facts["package", case] or {})
        failed = found.pop("alone_error", None)
        row |= empty | {key: value for key, value in found.items() if key != "seconds"}
        row["ms"] = {form: [each[form] for each in rounds if each.get(form)] for form in FORMS}
        row["made_s"] = {form: facts[form, case]["seconds"] for form in ready}
        row["errors"] = {form: workers[form, case].error() for form in FORMS if form not in ready}
        row["errors"] |= {"alone": failed} if failed else {}
        rows.append(row)
    for worker in workers.values():
        worker.end()
    return rows


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("model", "size", "batch", "dynamic", "dtype"))


def show(rows: list[dict[str, Any]]) -> bool:
    """Print a table; whether all packages are as they should be."""
    print(f"{'':18}{'size':>6}{'batch':>6}  {'dynamic':22}{'dtype':9}{'made':>5}{'kernels':>8}{'opaque':>7}"
          f"{'differs':>9}{'alone':>9}{'package':>9}{'compiled':>9}{'ratio':>7}")  # fmt: skip
    good = True
    for row in rows:
        ms = [median(row["ms"][form]) if row["ms"][form] else None for form in FORMS]
        fast = ms[0] is not None and ms[1] is not None and ms[0] <= SLOWER * ms[1]
        good &= fast and row["opaque"] == 0 and row["alone"] is not None
        numbers = [f"{'-' if row[key] is None else format(row[key], '.1e'):>9}" for key in ("difference", "alone")]
        speeds = [f"{1e3 * row['batch'] / value:>9.0f}" if value else f"{'-':>9}" for value in ms]
        ratio = f"{ms[1] / ms[0]:>7.3f}" if ms[0] and ms[1] else f"{'-':>7}"
        print(
            f"{row['model']:18}{row['size']:>6}{row['batch']:>6}  {row['dynamic']:22}{row['dtype']:9}"
            f"{row['made_s'].get('package', 0):>5.0f}{row['kernels'] or 0:>8}{row['opaque'] or 0:>7}"
            f"{''.join(numbers)}{''.join(speeds)}{ratio}"
        )
        for form, error in row["errors"].items():
            print(f"    {form}: {error}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file; by default only printed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", default=",".join(CASES), help="separated by commas")
    parser.add_argument("--limit", type=float, default=145.0, help="seconds to make all of them")
    parser.add_argument("--logs", help="file for what the processes print")
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        form, case, folder = options.make
        make(form, case, Path(folder), options.device)
        return 0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options.cases.split(","), Path(folder), options.device, options.limit)
        if options.logs:
            logs = sorted(Path(folder).glob("*/log.txt"))
            Path(options.logs).write_text("".join(f"== {p.parent.name}\n{p.read_text()[-20000:]}\n" for p in logs))
    import torch
    from measuring import kept, write

    whole = {_key(row): row for row in kept(options.out)}
    whole |= {_key(row): row for row in rows if not row["errors"] or _key(row) not in whole}
    write(options.out, __file__, list(whole.values()), torch.device(options.device))
    print(f"torch {torch.__version__}, {time.perf_counter() - start:.0f} s")
    return 0 if show(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
