"""`sightline linearize`: the stages of a linearization, each a run of the engine, and what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.data.order import Placement
from sightline.engine import settings
from sightline.engine.records import DONE, Row, read_rows
from sightline.engine.run_folder import differences
from sightline.engine.train import train
from sightline.models.attention_error import block_errors
from sightline.tasks.config import RunConfig
from sightline.tasks.registry import TASKS
from sightline.util.device import choose_device
from sightline.util.errors import FileError, InputError
from sightline.util.files import write_json
from sightline.util.text import say

TASK = "linearize"
STAGE1 = "stage1"  # folder of the first stage, in that of the second
RESULTS = "linearize.json"


@dataclass(frozen=True)
class Linearized:
    """The outcome; `sightline.load(folder)` opens the student.

    Args:
        folder: of the last stage.
        kept: blocks that keep softmax, or their number.
        errors: of every block after the last stage, on the teacher's inputs.
        scores: agreement with the teacher in percent, and top1 and others where there are labels.
        speed: images per second of teacher and student by size.
    """

    folder: Path
    kept: object
    errors: list[float]
    scores: dict[str, float]
    speed: list[Mapping[str, float]] = field(default_factory=list)


def linearize_run(
    teacher: str,
    images: Sequence[str],
    *,
    checkpoint: str | None = None,
    attention: str = "auto",
    keep: int | Sequence[int] = 0,
    search: int = 0,
    labelled: str | None = None,
    out: str | Path = "runs/linearize",
    stage1_only: bool = False,
    speed: bool = True,
    changes: Mapping[str, object] | None = None,
    stage1: Mapping[str, object] | None = None,
    stage2: Mapping[str, object] | None = None,
) -> Linearized:
    """Train a linear student of a softmax model. A stage that is complete is not repeated, an interrupted one resumes.

    Args:
        teacher: a model of timm or ours.
        images: folders, zip files or patterns of images to train on.
        checkpoint: weights of the teacher; by default the published ones.
        attention: mechanism of the student, or "auto"; see `sightline.linearize`.
        keep: blocks that keep softmax, their number or a list.
        search: instead of `keep`, how many blocks should keep softmax: they are chosen after stage 1.
        labelled: labeled images to evaluate on; by default some of `images` are held out.
        out: the run folder.
        stage1_only: stop after the first stage.
        speed: measure the speed of teacher and student.
        changes, stage1, stage2: keys of the configuration by `section.key`, for both stages or one.

    Raises:
        InputError, FileError, RunError: as `sightline.train`.
    """
    folder, module = Path(out), TASKS[TASK].module
    found = {} if labelled is None else module.labelled(labelled)
    common: dict[str, object] = {
        "model.name": teacher,
        "model.checkpoint": checkpoint,
        "model.pretrained": checkpoint is None,
        "data.images": tuple(images),
        **{f"data.{key}": value for key, value in found.items()},
        "linearize.attention": attention,
        "linearize.keep": 0 if search else keep if isinstance(keep, int) else tuple(keep),
        **(changes or {}),
    }
    first = _configure("linearize_stage1", {**common, **(stage1 or {}), "run.folder": str(folder / STAGE1)})
    second = {**common, "linearize.start": str(folder / STAGE1), **(stage2 or {}), "run.folder": str(folder)}
    config = _configure("linearize", second)
    if not stage1_only:
        module.check(config, search)  # now, not after hours of the first stage
    row = _complete(first)
    errors = block_errors(row)
    say(f"errors by block: {' '.join(f'{error:.3f}' for error in errors)}")
    if stage1_only:
        return _finish(folder / STAGE1, first, row, speed)
    if search:
        device = choose_device(config.run.device, "run.device")
        kept: tuple[int, ...] = module.search(config, Placement(device, config.batch.size), errors, search)
        config = _configure("linearize", {**second, "linearize.keep": kept})
        say(f"softmax is kept in blocks {', '.join(map(str, kept))}")
    return _finish(folder, config, _complete(config), speed)


def _configure(recipe: str, values: Mapping[str, object]) -> Any:
    return settings.configure(settings.load_recipe(recipe), values)


def _complete(config: RunConfig) -> Row:
    """Train unless the run is complete; the metrics of the best epoch."""
    folder = Path(str(config.run.folder))
    if not (folder / DONE).is_file():
        train(config)
    elif different := differences(folder, config):
        raise InputError(f"{folder}: a run with another {', '.join(different[:4])}; give another --out")
    rows = [row for row in read_rows(folder) if row.get("agreement") is not None]
    if not rows:
        raise FileError(f"{folder}: its metrics are damaged; remove the folder to train again")
    return max(rows, key=lambda row: row["agreement"] or 0.0)


def _finish(folder: Path, config: Any, row: Row, speed: bool) -> Linearized:
    keys = ("agreement", "top1", "top5")
    scores = {key: float(value) for key in keys if (value := row.get(key)) is not None}
    rates: list[Mapping[str, float]] = []
    if speed:
        rates = TASKS[TASK].module.speeds(config, choose_device(config.run.device, "run.device"))
    done = Linearized(folder, config.linearize.keep, block_errors(row), scores, rates)
    write_json(
        folder / RESULTS,
        {"keep": done.kept, "errors": done.errors, "scores": scores, "images_per_second": [dict(r) for r in rates]},
    )
    return done
