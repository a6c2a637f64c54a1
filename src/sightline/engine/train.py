"""`sightline.train`: a recipe, data and overrides become a run folder with its report."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sightline.data.order import Placement
from sightline.engine.checkpoint import Checkpoints, SaveError
from sightline.engine.distributed import leave, make_accelerator, peers, rank, total, wait
from sightline.engine.progress import clock
from sightline.engine.records import Row
from sightline.engine.run_folder import RunFolder, choose
from sightline.engine.settings import EMBEDDED, PHOTOS, configure, default_recipe, load_recipe, recipe_names, to_dict
from sightline.engine.signals import StopSignals
from sightline.engine.state import Progress
from sightline.engine.trainer import Trainer
from sightline.tasks.base import Task
from sightline.tasks.config import RunConfig
from sightline.tasks.registry import TASKS
from sightline.util.errors import InputError, RunError, shown
from sightline.util.text import say

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.utils.tensorboard import SummaryWriter

FEW = 2000  # training images, for the recipe of photographs
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, for now


@dataclass(frozen=True)
class Run:
    """A complete run; `sightline.load(run.folder)` opens its best weights.

    Args:
        folder: with config.yaml, metrics.jsonl, checkpoints, figures and report.html.
        best: the highest score, in percent, or None if nothing could be scored.
        metric: what `best` is, such as top1 or miou.
        history: one record per epoch, as in metrics.jsonl; empty in processes other than the first.
    """

    folder: Path
    best: float | None
    metric: str
    history: list[Row]


def train(
    recipe: str | Path | RunConfig | None = None,
    data: str | Path | None = None,
    *,
    model: str | Mapping[str, object] | None = None,
    out: str | Path | None = None,
    **overrides: object,
) -> Run:
    """Train a model. Without arguments: a small InLine classifier on embedded data, in about a minute.

    An interrupted run resumes when the same call is repeated. Progress is printed.

    Args:
        recipe: a packaged recipe, a YAML file, or a configuration; by default `photos`, or `quick` without data.
        data: path of the data, `data.path` of the configuration.
        model: a name, `model.name` of the configuration, or keys of the section `model`.
        out: the run folder; by default runs/NAME-OF-THE-RECIPE, with a number.
        overrides: sections with the keys to change, or dotted keys. `sightline train --help` lists them all.

    Raises:
        InputError: the recipe or an override cannot be used.
        FileError: the data cannot be used.
        RunError: the run could not continue, or was asked to stop; what it saved is intact.

    Example:
        >>> run = sightline.train("quick", "pictures", out="runs/mine", schedule={"epochs": 1}, **{"batch.size": 8})
        pictures/train: 36 images decoded...
        >>> run.folder.name, run.metric, len(run.history)
        ('mine', 'top1', 1)
    """
    given = dict(overrides)
    if model is not None:
        given["model" if isinstance(model, Mapping) else "model.name"] = model
    if data is not None:
        given["data.path"] = str(data)
    if out is not None:
        given["run.folder"] = str(out)
    if recipe is None:
        recipe = default_recipe(given)
    if isinstance(recipe, str | Path):
        name, values = Path(recipe).stem, load_recipe(str(recipe))
    elif isinstance(recipe, RunConfig):
        name, values = "run", to_dict(recipe)
    else:
        raise InputError(f"recipe: expected a name, a YAML file or a configuration; got {shown(recipe)}")
    config = configure(values, given)
    embedded = config.data.path is None and getattr(config.data, "source", "synthetic") != "synthetic"
    embedded = embedded and not hasattr(config.data, "images")
    if recipe != EMBEDDED and recipe in recipe_names() and embedded:
        raise InputError(f"data: the recipe {recipe} needs data; give its path")
    path, resuming = choose(config, name)
    if config.run.folder is None and path.name != name and not resuming and rank() == 0:
        say(f"{path.with_name(name)} holds another run, or a complete one; this is {path}")
    accelerator = make_accelerator(config.run)
    try:
        with StopSignals() as signals, peers():
            return _run(config, path, resuming, accelerator, signals, name)
    except torch.OutOfMemoryError as error:
        raise RunError(f"out of memory; lower batch.size or raise batch.accumulate ({_first_line(error)})") from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise SaveError(
            f"{error.filename or path} could not be written ({str(error.strerror).lower()}); the last checkpoint is "
            f"intact: make room and run the same command to resume"
        ) from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise RunError(f"{_first_line(error)}; run the same command to resume, with fewer data.workers") from error
    finally:
        leave()


def _run(
    config: RunConfig, path: Path, resuming: bool, accelerator: "Accelerator", signals: StopSignals, recipe: str
) -> Run:
    torch.use_deterministic_algorithms(config.run.deterministic)
    folder = RunFolder(path) if accelerator.is_main_process else None
    task: Task | None = None
    try:
        wait(accelerator.device)
        with signals.at_once():
            task = TASKS[config.task].make(config, _placement(config, accelerator))
        trainer = Trainer(config, task, accelerator, folder, signals)
        _introduce(trainer, path, recipe)
        checkpoints = Checkpoints(path / "checkpoints", trainer.printer.line)
        resumed = trainer.resume(checkpoints) if resuming else None
        if resuming and resumed is None and (checkpoints.exist() or config.run.resume == "must"):
            raise InputError(
                f"run.folder: {path} holds no checkpoint to resume from; choose another folder to start from scratch"
            )
        _check_same_step(trainer)
        if folder is not None:
            if resumed is None:
                folder.describe(config, task.card.classes, _device(accelerator))
            else:
                checkpoints.settle(resumed)
            folder.rewind(trainer.progress.logged, trainer.progress.step)
            trainer.board = _board(config, folder, trainer.progress)
        trainer.fit()
        history = [] if folder is None else _conclude(trainer, folder)
        return Run(path, trainer.progress.best, trainer.spec.best, history)
    finally:
        if task is not None:
            task.close()
        if folder is not None:
            folder.close()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(". ")


def _check_same_step(trainer: Trainer) -> None:
    """Reject a folder in which processes find different checkpoints."""
    step = torch.tensor([float(trainer.progress.step)], device=trainer.accelerator.device)
    if float(total(step)) != trainer.progress.step * trainer.accelerator.num_processes:
        raise InputError("run.folder: processes find different checkpoints; give a folder that all machines share")


def _placement(config: RunConfig, accelerator: "Accelerator") -> Placement:
    batch = config.batch
    return Placement(
        accelerator.device,
        batch.size,
        batch.accumulate,
        batch.eval_size or batch.size,
        accelerator.num_processes,
        accelerator.process_index,
        config.run.seed,
    )


def _board(config: RunConfig, folder: RunFolder, here: Progress) -> "SummaryWriter | None":
    """TensorBoard's writer, if it is enabled and installed; events that are to be written again are dropped."""
    if not config.run.tensorboard:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("no TensorBoard events: pip install tensorboard")
        return None
    first = here.step + int(here.settled) if here.step else None  # of the events to come
    return SummaryWriter(str(folder.path / "tensorboard"), purge_step=first)


def _device(accelerator: "Accelerator") -> str:
    device = accelerator.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{accelerator.num_processes} x {device.type} ({name})"


def _introduce(trainer: Trainer, path: Path, recipe: str) -> None:
    task, line = trainer.task, trainer.printer.line
    millions = sum(p.numel() for p in trainer.raw.parameters()) / 1e6
    size = "x".join(map(str, task.card.input_size))
    trainer.printer.plan()
    line(f"{task.card.title}, {millions:.2f} M parameters, {size}, {len(task.card.classes)} classes")
    line(
        f"{task.order.images:,} training {trainer.spec.unit}, {len(task):,} to evaluate, {_device(trainer.accelerator)}"
    )
    if trainer.accelerator.mixed_precision != trainer.config.run.precision:
        line("in full precision: this CPU has no bfloat16")
    for note in task.notes:
        line(note)
    model = trainer.config.model
    trained = model.checkpoint or getattr(model, "pretrained", False)
    if recipe == PHOTOS and task.order.images < FEW and not trained:
        line("these are few images to learn from scratch; --config finetune starts from a trained model")
    compiled = trainer.compiled
    if compiled.active or (compiled.choice.mode is None and trainer.accelerator.device.type == "cuda"):
        line(compiled.choice.line)
    line(f"run folder: {path}")


def _conclude(trainer: Trainer, folder: RunFolder) -> list[Row]:
    """Write the report, mark the run complete, and print where everything is; returns the metrics."""
    progress, spec = trainer.progress, trainer.spec
    if trainer.board is not None:
        trainer.board.close()
    if trainer.config.run.report:  # first: a run killed here writes it when the same command is given again
        from sightline.engine.report import write_report

        write_report(folder.path)
    history = folder.finish(
        {spec.best: progress.best, "epoch": progress.best_epoch, "step": progress.step, "seconds": progress.seconds}
    )
    if progress.skipped or trainer.task.broken:
        batches, images = progress.skipped, len(trainer.task.broken)
        say(f"skipped: {batches} batch{'es' * (batches != 1)}, {images} unreadable image{'s' * (images != 1)}")
    metric = spec.shown[spec.best]
    reached = f"no {metric}, since nothing to evaluate could be scored: checkpoints/best has the last weights;"
    if progress.best is not None:
        reached = f"best {metric} {progress.best:.2f} % (epoch {progress.best_epoch})"
    say(f"{reached} in {clock(progress.seconds)}; everything is in {folder.path}")
    return history
