"""`sightline eval` of a model of sequences."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.options import UsageError, refuse_given
from sightline.cli.output import Column, show, write_facts, write_tables

if TYPE_CHECKING:
    from sightline.cli.eval import Options
    from sightline.tasks.evaluation import Evaluation
    from sightline.tasks.sequences.config import Data

SCORES = (
    Column("task"), Column("split"), Column("examples", right=True), Column("accuracy %", right=True),
    Column("balanced %", right=True), Column("ECE %", right=True), Column("loss", right=True),
    Column("examples/s", right=True),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What was evaluated, and what came out."""

    title: str
    path: Path
    task: str
    split: str
    classes: tuple[str, ...]
    parameters: int
    device: str
    cut: int
    evaluation: "Evaluation"

    def facts(self) -> dict[str, Any]:
        """Everything as data."""
        scores = {key: None if value != value else round(value, 4) for key, value in self.evaluation}
        return {
            "checkpoint": str(self.path), "model": self.title, "parameters": self.parameters, "task": self.task,
            "split": self.split, "device": self.device, "examples": self.evaluation.images, "cut": self.cut,
            "seconds": round(self.evaluation.seconds, 3), **scores,
            "per_class": self.evaluation.per_class(self.classes), "confusion": self.evaluation.total.confusion.tolist(),
        }  # fmt: skip


def weights_of(checkpoint: str) -> Path | None:
    """The file of weights where a run folder or file holds a model of sequences, else None."""
    from sightline.models.weights.reader import find_weights, read_metadata

    source = Path(checkpoint)
    if source.is_dir():
        try:
            source = find_weights(source)
        except ValueError:
            return None
    return source if "sequences" in read_metadata(source) else None


def evaluate_run(
    path: Path, data: "Data", split: str, *, batch_size: int = 64, device: str = "auto", precision: str = "no"
) -> Found:
    """Evaluate a file of weights on a split of the data."""
    from sightline.cli.output import bar
    from sightline.tasks.evaluation import evaluate
    from sightline.tasks.sequences.data import SPLITS, ProgressPrinter, cut, open_splits
    from sightline.tasks.sequences.model import load
    from sightline.tasks.sequences.passes import one_pass

    if split not in SPLITS:
        raise UsageError(f"--split: {split!r} is not one of {', '.join(SPLITS)}")
    from sightline.util.device import choose_device

    place = choose_device(device, "--device")
    model, card = load(path)
    if card.task != data.name:
        raise UsageError(f"{path}: a model of {card.task}, and the data are of {data.name}")
    data = replace(data, length=card.length)
    tokens = open_splits(data, data.path, ProgressPrinter(), (split,))[split]
    with bar(len(tokens), split) as advance:
        found = evaluate(
            model.to(place), one_pass(tokens, batch_size, card.length), len(card.classes),
            device=place, precision=precision, on_batch=advance,
        )  # fmt: skip
    title = f"{card.name} ({card.arguments.get('attention', 'softmax')})"
    parameters = sum(p.numel() for p in model.parameters())
    return Found(title, path, card.task, split, card.classes, parameters, str(place), cut(data, tokens), found)


def run(options: "Options", path: Path) -> None:
    """Load, evaluate, print."""
    refuse_given(
        {
            "--img-size": options.img_size, "--labels": options.labels != "names", "--model": options.model,
            "--model-args": options.model_args, "--limit": options.limit, "--slide": options.slide,
            "--scales": options.scales, "--flip": options.flip,
        },
        "for images; leave it out for sequences",
    )  # fmt: skip
    data = data_of(options.checkpoint or "", path, options.data)
    found = evaluate_run(
        path, data, options.split or "test", batch_size=options.batch_size, device=options.device,
        precision=options.precision,
    )  # fmt: skip
    facts = found.facts()
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print(f"{found.title}, {found.parameters / 1e6:.2f} M parameters, from {path}")
        if found.cut:
            print(f"{found.cut:,} sequences were cut")
        scores = found.evaluation.scores
        numbers = [f"{scores[key]:.2f}" for key in ("top1", "balanced", "ece")]
        rate = found.evaluation.images / found.evaluation.seconds
        cells = [found.task, found.split, f"{found.evaluation.images:,}", *numbers, f"{scores['loss']:.4f}"]
        show(SCORES, [[*cells, f"{rate:,.0f}"]])
    if options.out is not None:
        written = [write_facts(Path(options.out), facts)]
        written += write_tables(Path(options.out), found.classes, facts["per_class"], facts["confusion"])
        if not options.json:
            print(f"wrote {', '.join(map(str, written))}")


def data_of(checkpoint: str, path: Path, given: str | None) -> "Data":
    """The data of the run that the weights lie in, of another folder where one is given; else as published."""
    from sightline.engine.settings import TASK, load_recipe, resolve
    from sightline.models.weights.reader import read_metadata
    from sightline.tasks.sequences.card import SequenceCard
    from sightline.tasks.sequences.config import Data

    runs = (Path(checkpoint), *path.resolve().parents[2:3])  # RUN/checkpoints/last/model.safetensors
    config = next((run / "config.yaml" for run in runs if (run / "config.yaml").is_file()), None)
    if config is not None:
        recipe = load_recipe(str(config))
        data: Data = resolve({TASK: "sequences", "data": recipe.get("data") or {}}).data
        return data if given is None else replace(data, path=given)
    card = SequenceCard.from_metadata(read_metadata(path))
    assert card is not None
    return Data(path=given, name=card.task)  # type: ignore[arg-type]
