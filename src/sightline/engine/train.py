"""A training run as a whole: from a configuration to a run folder with its report."""

import errno
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sightline.data.order import Placement
from sightline.engine.checkpoint import Checkpoints, find_weights
from sightline.engine.config import AnyConfig
from sightline.engine.distributed import leave, make_accelerator, peers, rank, total, wait
from sightline.engine.errors import RunError, SaveError
from sightline.engine.progress import clock
from sightline.engine.run_folder import RunFolder, choose
from sightline.engine.signals import StopSignals, listening
from sightline.engine.trainer import Trainer
from sightline.engine.values import ConfigError
from sightline.tasks.registry import TASKS

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, for now


def train(config: AnyConfig, name: str = "run") -> Path | None:
    """Train as `config` says; gives the run folder, or None in processes other than the first.

    Args:
        config: of the run.
        name: what to call the run folder where `run.folder` does not say.

    Raises:
        ValueError: the configuration or the data cannot be used.
        RunError: the run could not go on, or was asked to stop.
    """
    path, going_on = choose(config, name)
    if config.run.folder is None and path.name != name and not going_on and rank() == 0:
        print(f"{path.with_name(name)} holds another run, or one that is complete; this is {path}", flush=True)
    accelerator = make_accelerator(config.run)
    try:
        with StopSignals() as signals, listening(signals), peers():
            return _run(config, path, going_on, accelerator, signals)
    except torch.OutOfMemoryError as error:
        raise RunError(f"out of memory; lower batch.size or raise batch.accumulate ({_first_line(error)})") from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise SaveError(
            f"{error.filename or path} could not be written ({str(error.strerror).lower()}); the last checkpoint is "
            f"intact: make room and give the same command to resume"
        ) from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise RunError(f"{_first_line(error)}; give the same command to resume, with fewer data.workers") from error
    finally:
        leave(accelerator)


def _run(config: AnyConfig, path: Path, going_on: bool, accelerator: Any, signals: StopSignals) -> Path | None:
    torch.use_deterministic_algorithms(config.run.deterministic)
    folder = RunFolder(path) if accelerator.is_main_process else None
    task = None
    try:
        wait(accelerator.device)
        with signals.at_once():
            task = TASKS[config.task].make(with_weights(config), _placement(config, accelerator), _note)
        board = _board(config, folder)
        trainer = Trainer(config, task, accelerator, folder, signals, board)
        _introduce(trainer, path)
        checkpoints = Checkpoints(path / "checkpoints", trainer.display.say)
        resumed = going_on and trainer.resume(checkpoints)
        if going_on and not resumed and (checkpoints.exist() or config.run.resume == "must"):
            raise ConfigError(
                f"run.folder: {path} holds no checkpoint to go on from; choose another folder to start anew"
            )
        _agree(trainer)
        if folder is not None:
            if resumed:
                folder.rewind(trainer.progress.epoch)
            else:
                folder.clear()
                folder.describe(config, task.card.classes, _device(accelerator))
        trainer.fit()
        if folder is not None:
            _conclude(trainer, folder)
        return path if folder is not None else None
    finally:
        if task is not None:
            task.close()
        if folder is not None:
            folder.close()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(". ")


def _agree(trainer: Trainer) -> None:
    """Refuse to go on where processes found different checkpoints."""
    step = torch.tensor([float(trainer.progress.step)], device=trainer.accelerator.device)
    if float(total(step)) != trainer.progress.step * trainer.accelerator.num_processes:
        raise ConfigError("run.folder: processes see different checkpoints; give a folder that all machines share")


def _placement(config: AnyConfig, accelerator: Any) -> Placement:
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


def with_weights(config: Any) -> Any:
    """A configuration whose sections name a file of weights where `checkpoint` names a run folder."""
    changed = {}
    for item in fields(config):
        section = getattr(config, item.name)
        checkpoint = getattr(section, "checkpoint", None)
        if is_dataclass(section) and checkpoint is not None and Path(checkpoint).is_dir():
            changed[item.name] = replace(section, checkpoint=str(find_weights(Path(checkpoint))))  # type: ignore[type-var]
    return replace(config, **changed)


def _note(what: str, done: int, total: int) -> None:
    if rank() == 0 and done >= total:
        print(f"{what} decoded: {total:,}", flush=True)


def _board(config: AnyConfig, folder: RunFolder | None) -> Any:
    """TensorBoard's writer in the first process, where it is wanted and installed."""
    if folder is None or not config.run.tensorboard:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("no TensorBoard events: pip install tensorboard", flush=True)
        return None
    return SummaryWriter(str(folder.path / "tensorboard"))


def _device(accelerator: Any) -> str:
    device = accelerator.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{accelerator.num_processes} x {device.type} ({name})"


def _introduce(trainer: Trainer, path: Path) -> None:
    task = trainer.task
    millions = sum(p.numel() for p in trainer.raw.parameters()) / 1e6
    size = "x".join(map(str, task.card.input_size))
    trainer.display.say(f"{task.card.title}, {millions:.2f} M parameters, {size}, {len(task.card.classes)} classes")
    trainer.display.say(
        f"{task.order.images:,} training {trainer.spec.unit}, {len(task):,} to evaluate, {_device(trainer.accelerator)}"
    )
    for note in task.notes:
        trainer.display.say(note)
    trainer.display.say(f"run folder: {path}")


def _conclude(trainer: Trainer, folder: RunFolder) -> None:
    """Mark the run complete, draw its figures, write its report, and say where everything is."""
    here = trainer.progress
    if trainer.board is not None:
        trainer.board.close()
    if trainer.config.run.report:  # first: a run that ends here writes it when the same command is given again
        from sightline.engine.report import write_report

        write_report(folder.path)
    best = trainer.spec.best
    folder.finish({best: here.best, "epoch": here.best_epoch, "step": here.step, "seconds": here.seconds})
    if here.skipped or trainer.task.broken:
        print(f"skipped: {here.skipped} batches, {len(trainer.task.broken)} unreadable images", flush=True)
    words = trainer.spec.shown[best]
    reached = f"no {words}, since nothing to evaluate could be scored: checkpoints/best has the last weights;"
    if here.best is not None:
        reached = f"best {words} {here.best:.2f} % (epoch {here.best_epoch})"
    print(f"{reached} in {clock(here.seconds)}; everything is in {folder.path}", flush=True)
