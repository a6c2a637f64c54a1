"""Compare mechanisms on real photographs: `python tools/measure_mechanisms.py IMAGENETTE OUT`.

Trains DeiT-Tiny with 8 px patches (256 tokens at 128 px) for every mechanism and seed with the recipe
`imagenette_deit`, analyzes confusions and locality for the first seed, times each mechanism on an idle GPU, and writes
OUT/mechanisms.json. Started again with the same OUT, it resumes. Needs one CUDA GPU.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import timm
import torch

COMPARED = ("softmax", "linear", "inline(residual=false)", "inline", "soft", "soft_norm", "focused", "nystromformer")
ABLATED = tuple(
    f"{name}(phi={phi})" for name in ("linear", "inline") for phi in ("leaky_relu", "identity", "exp", "relu")
)
SAME = {"linear(phi=relu)": "linear", "inline(phi=identity)": "inline"}  # the defaults
MODEL = "inline_deit_tiny"
COMMAND = (
    "sightline train --config imagenette_deit --data IMAGENETTE --model.compile true "
    "--model.compile_mode reduce-overhead --run.report false --run.eval_every 5 --run.seed SEED "
    '--model.args {"patch_size":8,"global_pool":"avg","attention":"ATTENTION"}'
)
DONE = 0


class Queue:
    """Runs commands, several at a time, until a deadline; what it cuts short can be started again."""

    def __init__(self, data: str, out: Path, epochs: int, until: float) -> None:
        self.data, self.out, self.epochs, self.until = data, out, epochs, until

    def folder(self, attention: str, seed: int) -> Path:
        return self.out / f"{attention}-{seed}".translate(str.maketrans("(=,", "---", ")"))

    def train(self, attention: str, seed: int) -> None:
        """One run, and what its weights show if it is the first of its mechanism."""
        folder = self.folder(attention, seed)
        words = COMMAND.replace("SEED", str(seed)).replace("ATTENTION", attention).split()
        words[words.index("IMAGENETTE")] = self.data
        more = ["--run.folder", str(folder / "run"), "--schedule.epochs", str(self.epochs), "--data.workers", "2"]
        if self.run(folder, "train", [*words[1:], *more]) != DONE or seed != 0 or attention not in COMPARED:
            return
        images = ["--checkpoint", str(folder / "run"), "--data", f"{self.data}/val", "--limit", "32", "--device", "cpu"]
        for what in ("injectivity", "locality"):
            self.run(folder, what, ["analyze", what, *images, "--out", str(folder / what)])

    def run(self, folder: Path, name: str, words: list[str]) -> int | None:
        """The exit status of `sightline` with these arguments, or None if the deadline passed first."""
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / f"{name}.status"
        if mark.exists():
            return int(mark.read_text())
        if time.time() > self.until:
            return None
        with (folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sightline", *words],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "2"},
            )
            try:
                process.wait(max(self.until - time.time(), 1))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                if process.wait() != DONE:  # it may have finished anyway
                    return None
        mark.write_text(str(process.returncode))
        return process.returncode


def last_line(folder: Path) -> dict[str, Any] | None:
    """The last evaluation of a complete run; None if incomplete."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    status = folder / "train.status"
    return lines[-1] if status.exists() and status.read_text() == "0" else None


def row_of(queue: Queue, attention: str, seeds: int) -> dict[str, Any]:
    """The results of all runs of a mechanism."""
    found, ended = [], []
    for seed in range(seeds):
        folder = queue.folder(attention, seed)
        if not (folder / "train.status").exists():
            continue
        last = last_line(folder) if (folder / "run" / "metrics.jsonl").exists() else None
        if last is None:
            ended.append((folder / "train.log").read_text(errors="replace").strip().splitlines()[-1])
        else:
            found.append(last)
    top1 = [round(line["top1"], 2) for line in found]
    row: dict[str, Any] = {
        "attention": attention,
        "top1": top1,
        "train_loss": [round(r["train_loss"], 3) for r in found],
    }
    if top1:
        row |= {"mean": round(statistics.mean(top1), 2), "spread": round(max(top1) - min(top1), 2)}
    if ended:
        row["ended"] = ended
    return row | looked_at(queue.folder(attention, 0))


def looked_at(folder: Path) -> dict[str, Any]:
    """Confusions per image and the local share of attention per layer, if measured."""
    seen: dict[str, Any] = {}
    if (path := folder / "injectivity" / "confusions.json").exists():
        found = json.loads(path.read_text())["result"]["subjects"][0]
        seen["confusions"] = {
            name: {"by_image": statistics.mean(found[name]), "share": found[f"{name}_share"]}
            for name in ("confused", "centred")
        }
    if (path := folder / "locality" / "locality.json").exists():
        layers = json.loads(path.read_text())["result"]["subjects"][0]["layers"]
        seen["locality"] = [{name: layer[name] for name in ("mass", "even", "residual")} for layer in layers]
    return seen


def speed_of(queue: Queue) -> dict[str, Any]:
    """Images per second and memory of every mechanism on an idle GPU; empty if there was no time for it."""
    folder = queue.out / "bench"
    others = [word for name in COMPARED if name != "inline" for word in ("--attention", name)]
    words = ["bench", "models", "--model", f"{MODEL}:patch_size=8", *others, "--img-size", "128", "--batch-size",
             "1024", "--mode", "train,forward", "--baselines", "off", "--budget", "40", "--force"]  # fmt: skip
    if queue.run(folder, "bench", [*words, "--out", str(folder)]) != DONE:
        return {}
    (path,) = folder.glob("models-*.json")
    rows: dict[str, dict[str, Any]] = {}
    for found in json.loads(path.read_text())["rows"]:
        name = found["entrant"].removeprefix(f"{MODEL}:patch_size=8").strip() or "inline"
        row, rate = rows.setdefault(name, {"attention": name}), round(found["images_per_s"])
        row |= {"forward": rate} if found["mode"] == "forward" else {
            "train": rate, "train_by_calls": round(1e3 * found["batch"] / found["call_ms"]),
            "gib": round(found["memory_mib"] / 1024, 2),
        }  # fmt: skip
    what = (
        "Speed and memory on an idle GPU, bfloat16, eager, by graph replay: inference at batch 1,024, a training "
        "step at batch 256"
    )
    return {"what": what, "command": "sightline " + " ".join(words), "rows": list(rows.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=8, help="parallel runs")
    parser.add_argument("--minutes", type=float, default=600, help="time limit")
    options = parser.parse_args()
    queue = Queue(options.data, options.out, options.epochs, time.time() + 60 * options.minutes)
    names = [*COMPARED, *(name for name in ABLATED if name not in SAME)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for seed in range(options.seeds):
            for name in names:
                pool.submit(queue.train, name, seed)
    result = {
        "what": f"Imagenette at 128 px from scratch, {MODEL} with 8 px patches, {options.epochs} epochs",
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "versions": {"torch": torch.__version__, "timm": timm.__version__, "python": sys.version.split()[0]},
        "commit": os.environ.get("SIGHTLINE_COMMIT", ""),
        "command": f"{COMMAND} --schedule.epochs {options.epochs}",
        "note": f"{options.jobs} runs at a time shared the GPU.",
        "seeds": options.seeds,
        "epochs": options.epochs,
        "rows": [row_of(queue, name, options.seeds) for name in names],
        "speed": speed_of(queue),
    }
    (options.out / "mechanisms.json").write_text(json.dumps(result, indent=1) + "\n")
    for row in result["rows"]:
        print(row["attention"], row["top1"], row.get("mean"), row.get("ended", ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
