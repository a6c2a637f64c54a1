"""Speed and peak memory of the Long Range Arena models with every mechanism.

    python tools/measure_sequences.py --out speed.json                                       # on a GPU, under a minute
    python tools/measure_sequences.py --device cpu --batch 2 --seconds 0 --tasks image       # a smoke test

Models and batches are those of the recipes `lra_TASK`, tokens are random; sequences of ListOps have 501 to 1,999
tokens, uniformly distributed, and are padded as in training. A training step is autocast to bfloat16, cross entropy,
backward and fused AdamW; inference is autocast too. Both are plain calls on an idle GPU. Memory is the peak
allocated by torch, excluding the model.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measuring import Budget, measure, options_of, write
from torch import Tensor
from torch.nn import functional as F

from sightline.engine.settings import load_recipe
from sightline.layers.spec import Spec
from sightline.models.sequence import SequenceEncoder, create_sequence_model
from sightline.tasks.sequences.arena import DEFAULT_MECHANISMS
from sightline.tasks.sequences.data import SEQUENCE_TASKS
from sightline.tasks.sequences.tokens import TokenSet

TASKS = ("listops", "image", "pathfinder")
SHORTEST = {"listops": 501}  # tokens; the other tasks have a fixed length
BATCHES = 8
Batch = tuple[Tensor, Tensor]


def batches(task: str, size: int, device: torch.device) -> list[Batch]:
    """Random examples of a task, (ids, labels) by batch, as long as the real ones."""
    spec, random = SEQUENCE_TASKS[task], np.random.default_rng(0)
    longest = spec.length - (task in SHORTEST)
    lengths = random.integers(SHORTEST.get(task, longest), longest + 1, BATCHES * size)
    sequences = (random.integers(0, spec.tokens, count, dtype=np.uint8).tobytes() for count in lengths)
    examples = TokenSet.pack(sequences, random.integers(0, len(spec.classes), BATCHES * size), spec.length)
    pairs = (examples.batch(np.arange(start, start + size), spec.length) for start in range(0, len(examples), size))
    return [(ids.int().to(device), labels.to(device)) for ids, labels in pairs]


def training(model: SequenceEncoder, examples: list[Batch]) -> Callable[[], None]:
    """A call that updates the model with the next batch."""
    device = examples[0][0].device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    turn = itertools.cycle(examples)

    def call() -> None:
        ids, labels = next(turn)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(ids).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    model.train()
    return call


def inference(model: SequenceEncoder, examples: list[Batch]) -> Callable[[], None]:
    """A call that runs the next batch."""
    device, turn = examples[0][0].device, itertools.cycle(examples)

    def call() -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            model(next(turn)[0])

    model.eval()
    return call


def row_of(task: str, attention: str, examples: list[Batch], drop: float, budget: Budget) -> dict[str, Any]:
    """A mechanism on a task: both modes."""
    device, size = examples[0][0].device, len(examples[0][0])
    torch.manual_seed(0)
    model = create_sequence_model(f"lra_{task}", attention=attention, drop_rate=drop).to(device)
    row: dict[str, Any] = {"task": task, "attention": str(Spec.parse(attention)), "batch": size}
    for name, make in (("train", training), ("forward", inference)):
        found = measure(make(model, examples), device, budget.share(), warm=BATCHES)
        rate = None if found["ms"] is None else round(1e3 * size / found["ms"], 1)
        row[name] = {"examples_per_second": rate, **found}
    return row


def main() -> None:
    parser = options_of(__doc__, seconds=1.2, total=48.0)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--attention", action="append", help="mechanism; may be repeated; by default six")
    parser.add_argument("--batch", type=int, help="by default that of the recipe")
    options = parser.parse_args()
    device, tasks = torch.device(options.device), options.tasks.split(",")
    names = options.attention or DEFAULT_MECHANISMS
    budget = Budget(2 * len(tasks) * len(names), options.seconds, options.budget)
    rows = []
    for task in tasks:
        recipe = load_recipe(f"lra_{task}")
        examples = batches(task, options.batch or recipe["batch"]["size"], device)
        for name in names:
            rows.append(row_of(task, name, examples, recipe["model"]["drop"], budget))
            print(json.dumps(rows[-1]), flush=True)
            write(options.out, __file__, rows, device)  # after every case, so that no measurement is lost
    print(f"wrote {options.out}" if options.out else "give --out to keep this")


if __name__ == "__main__":
    main()
