"""The training loop: updates, evaluations, checkpoints. Stopped anywhere, it resumes as if it had not been."""

import math
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sightline.data.order import derive
from sightline.engine.checkpoint import BEST, Checkpoints, Saved, write_weights
from sightline.engine.compiling import CompiledModel, choose
from sightline.engine.distributed import gather, total
from sightline.engine.optimize import make_average, make_optimizer, make_schedule
from sightline.engine.progress import ProgressPrinter
from sightline.engine.recording import Recorder
from sightline.engine.records import Row
from sightline.engine.run_folder import RunFolder
from sightline.engine.signals import Stopped, StopSignals
from sightline.engine.state import Progress, capture, full_weights, is_sharded, restore
from sightline.engine.step import StepFlags, Stepper
from sightline.models.weights.reader import WEIGHTS, read_weights
from sightline.tasks.base import Scores, Task
from sightline.tasks.config import RunConfig
from sightline.tasks.registry import TASKS, TaskSpec
from sightline.util.errors import FileError, InputError, RunError
from sightline.util.names import format_rate

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.utils.tensorboard import SummaryWriter


class NonFiniteError(RunError):
    """A loss or gradient is not a finite number."""


class Trainer:
    """A run from its first update, or from a checkpoint, to its last evaluation.

    Args:
        config: of the run.
        task: model, batches, loss and evaluation.
        accelerator: Accelerate's engine.
        folder: the run folder in the first process, None in the others.
        signals: requests to stop.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        accelerator: "Accelerator",
        folder: RunFolder | None,
        signals: StopSignals,
    ) -> None:
        self.config, self.task, self.accelerator = config, task, accelerator
        self.spec = TASKS[config.task]
        self.folder, self.signals = folder, signals
        self.board: SummaryWriter | None = None
        optimizer, self.average = make_optimizer(task.model, config), make_average(task.model, config)
        self.model, self.optimizer = accelerator.prepare(task.model, optimizer)
        if accelerator.scaler is None:
            self.optimizer = optimizer  # without Accelerate's wrapper, which looks for packages at every update
        self.raw = accelerator.unwrap_model(self.model)
        self.sharded = is_sharded(self.raw)
        if self.sharded and self.average is not None:
            raise InputError("ema.decay: averaged weights are not available with FSDP; give ema.decay=0")
        if self.sharded and config.optim.clip is not None and config.optim.clip_mode == "agc":
            raise InputError("optim.clip_mode: agc is not available with FSDP; give norm or value")
        self.schedule, self.epochs = make_schedule(optimizer, config, task.order.steps)
        lag = accelerator.device.type == "cuda" and not config.run.skip_nonfinite
        main, every, steps = accelerator.is_main_process, config.run.log_every, task.order.steps
        updates = min(self.epochs * steps, config.run.max_steps or self.epochs * steps)
        self.printer = ProgressPrinter(main, self.epochs, steps, updates, config.batch.size, every, self.spec.unit)
        one_pass = task.order.accumulate == 1 and accelerator.scaler is None
        processes = accelerator.num_processes
        choice = choose(config.model, accelerator.device.type, task.shapes, processes, self.sharded, one_pass)
        parts = task.repeated if choice.blocks else [task.compiled]
        self.compiled = CompiledModel(self.raw, parts, choice, task.shapes, self.printer.line)
        learned = [p for p in self.raw.parameters() if p.requires_grad]
        recorder = None
        if choice.recorded:
            recorder = Recorder(learned, self.printer.line, [*self.raw.buffers()])
        self.stepper = Stepper(
            accelerator, task, self.model, self.optimizer, config.optim, lag, self.compiled, recorder
        )
        self.progress = Progress()
        self.stopping = False  # all processes were told so
        self.saved_at = self.started = time.monotonic()
        self.rate = 0.0  # examples per second of the last epoch, without evaluation

    def resume(self, checkpoints: Checkpoints) -> Saved | None:
        """Load the newest complete checkpoint; None if there is none."""
        saved = checkpoints.latest()
        if saved is None:
            return None
        self._check_data(saved)
        self.progress = restore(saved, self.raw, self.average, self.optimizer, self.accelerator.scaler)
        where = f"epoch {self.progress.epoch + 1}, update {self.progress.batch}"
        if self.progress.epoch > self.epochs or self.progress.batch > self.task.order.steps:
            raise FileError(f"{saved.path}: beyond the end of the run ({where})")
        if not self._complete():
            self.progress.logged = self.progress.epoch
        self.task.broken.update(dict.fromkeys(self.progress.broken))
        self.printer.line(f"resuming from {saved.path}: {where}, step {self.progress.step}")
        self._check_best(checkpoints.folder / BEST / WEIGHTS)
        return saved

    def _check_best(self, path: Path) -> None:
        """Let the weights of the next evaluation be the best if those that were are damaged or gone."""
        if self.progress.best is None:
            return
        try:
            read_weights(path)
        except FileError:
            ended = self._complete()
            instead = "those of the end are in checkpoints/last" if ended else "those of the next evaluation replace it"
            self.printer.line(f"{path}: the best weights are damaged or missing; {instead}")
            if not ended:
                self.progress.best = None

    def _check_data(self, saved: Saved) -> None:
        """Reject images or classes other than those the run was started with."""
        images, classes = self.task.order.images, list(self.task.card.classes)
        if saved.record.get("classes", classes) != classes or saved.record.get("images", images) != images:
            raise InputError(
                f"data.path: {saved.path} was trained on other data, here are {images:,} {self.spec.unit} of "
                f"{len(classes)} classes; give the same data"
            )

    def fit(self) -> None:
        """Train to the end.

        Raises:
            Stopped: a signal arrived; the state is saved.
            NonFiniteError: a loss or gradient is not finite.
            SaveError: a checkpoint could not be written.
        """
        try:
            while not self._complete():
                self._train_epoch()
                self._finish_epoch()
        finally:
            self.printer.stop()
            self.compiled.close()

    def _complete(self) -> bool:
        """Whether the last epoch is trained, evaluated and logged; run.max_steps may end it before its last update."""
        here = self.progress
        return here.epoch >= self.epochs or (self._max_steps_reached() and here.settled)

    def _max_steps_reached(self) -> bool:
        limit = self.config.run.max_steps
        return limit is not None and self.progress.step >= limit

    def _train_epoch(self) -> None:
        here, order = self.progress, self.task.order
        self.model.train()
        self.printer.begin(here.epoch, here.batch)
        batches = iter(self.task.batches(here.epoch, here.batch)) if here.batch < order.steps else iter(())
        while here.batch < order.steps and not self._max_steps_reached():
            self._update(list(islice(batches, order.accumulate)))
            if self.compiled.warming(order.steps):
                self.printer.begin(here.epoch, here.batch)  # rates and estimates are without the time to compile
            else:
                self.printer.update(here.epoch, here.batch, here.mean_loss, self.optimizer.param_groups[0]["lr"])
            if self.stopping:
                self._stop()
            if self._save_due():
                self.save()
        self._record(self.stepper.flush())
        self.rate = self.printer.rate()

    def _update(self, micro_batches: list[object]) -> None:
        """One update, and what the flags of it, or of the previous one, say."""
        here, order = self.progress, self.task.order
        # Random numbers of the model (stochastic depth, dropout) depend on the step alone, not on what ran before.
        seed = derive(order.seed, here.step, order.rank, 4)
        self.schedule.step_update(here.step)
        flags = self.stepper.gradients(micro_batches, seed, self.signals.received is not None)
        here.step, here.batch = here.step + 1, here.batch + 1
        self._record(flags)
        if self.stepper.lag or flags is None or not flags.bad:
            self.optimizer.step()
            if self.average is not None:
                self.average.update(self.raw, here.step)
        self.optimizer.zero_grad()

    def _record(self, flags: StepFlags | None) -> None:
        """Add the loss of an update to that of the epoch, or skip or stop if not finite; note a request to stop."""
        here = self.progress
        if flags is None:
            return
        self.stopping = self.stopping or bool(flags.stop)
        if not flags.bad:
            here.loss_sum, here.losses = here.loss_sum + flags.loss, here.losses + 1
            return
        here.skipped += 1
        allowed = self.config.run.skip_nonfinite
        late = int(self.stepper.lag)
        what = "the loss" if not math.isfinite(flags.loss) else "the gradient"
        where = f"step {here.step - late}, epoch {here.epoch + 1}, batch {here.batch - late}"
        if here.skipped > allowed:
            after = f", after {allowed} that were skipped" if allowed else ""
            raise NonFiniteError(
                f"{where}: {what} is not finite{after}; the last good checkpoint is kept; resume from it and skip such "
                f"batches with run.skip_nonfinite=N, or start in another folder with a lower optim.lr or optim.clip"
            )
        self.printer.line(f"{where}: {what} is not finite; skipped ({here.skipped} of {allowed})")

    def _finish_epoch(self) -> None:
        """Evaluate, log, keep the best weights, save."""
        here, run = self.progress, self.config.run
        last = here.epoch + 1 >= self.epochs or self._max_steps_reached()
        evaluated = last or (here.epoch + 1) % run.eval_every == 0
        self._log(self._evaluate() if evaluated else None)
        if here.batch >= self.task.order.steps:  # not if run.max_steps ended it before
            here.next_epoch()
        stop = self._stop_asked()
        if last or here.epoch % run.save_every == 0 or stop:
            self.save()
        if stop:
            raise self._stopped()

    def _evaluate(self) -> Scores:
        model = self.raw if self.average is None else self.average.module
        done, images = 0, len(self.task)

        def on_batch(count: int) -> None:
            nonlocal done
            done += count * self.accelerator.num_processes
            self.printer.show("evaluation", min(done, images), images)
            if self.signals.received and self.accelerator.num_processes == 1:  # several processes agree at the end
                self._stop()

        scorer, batches = self.task.scorer(self.accelerator.device), self.task.evaluation()
        with self.compiled.eager():
            return scorer.evaluate(model, batches, self.accelerator.mixed_precision, total, gather, on_batch)

    def _log(self, evaluation: Scores | None) -> None:
        """Log an epoch, and keep its weights if they are the best."""
        here = self.progress
        values: Row = {
            "epoch": here.epoch + 1,
            "step": here.step,
            "train_loss": here.mean_loss,
            "lr": self.optimizer.param_groups[0]["lr"],
            "images_per_second": float(f"{self.rate:.4g}"),
        }
        if evaluation is not None:
            finite = ((name, value if math.isfinite(value) else None) for name, value in evaluation)  # as JSON has it
            values |= {"val_loss" if name == "loss" else name: value for name, value in finite}
            self._keep_best(values.get(self.spec.best), evaluation)
        if here.skipped or self.task.broken:
            values |= {"skipped_batches": here.skipped, "skipped_images": len(self.task.broken)}
        here.logged += 1
        if self.folder is not None:
            self.folder.log(values)
        if self.board is not None:
            for name, value in values.items():
                if name not in ("epoch", "step") and value is not None:
                    self.board.add_scalar(name, value, here.step)
            self.board.flush()
        self.printer.line(_epoch_line(values, self.epochs, self.spec, evaluation is not None))

    def _keep_best(self, score: float | None, evaluation: Scores) -> None:
        """Keep the weights if they are the best so far; before the first score, always."""
        here = self.progress
        if here.best is not None and (score is None or not score > here.best):
            return
        if score is not None:
            here.best, here.best_epoch = score, here.epoch + 1
        weights = full_weights(self.raw if self.average is None else self.average.module)
        if self.folder is not None:
            write_weights(self.folder.checkpoints / BEST / WEIGHTS, weights, self.task.card)
            self.folder.keep_evaluation(evaluation, self.task.card.classes)

    def _save_due(self) -> bool:
        run, step = self.config.run, self.progress.step
        if run.save_steps is not None and step % run.save_steps == 0:
            return True
        if self.sharded:  # all processes must save together, and their clocks differ
            return False
        return run.save_minutes is not None and time.monotonic() - self.saved_at > 60 * run.save_minutes

    def save(self) -> None:
        """Write a checkpoint, once all updates before it are known to be finite."""
        self._record(self.stepper.flush())
        self.saved_at = time.monotonic()
        if self.folder is None and not self.sharded:
            return
        here = self.progress
        here.broken = list(self.task.broken)
        now = time.monotonic()
        here.seconds, self.started = here.seconds + now - self.started, now
        weights, tensors, record = capture(here, self.raw, self.average, self.optimizer, self.accelerator.scaler)
        record |= {"images": self.task.order.images, "classes": list(self.task.card.classes)}
        if self.folder is not None:
            Checkpoints(self.folder.checkpoints, self.printer.line).save(weights, self.task.card, tensors, record)

    def _stop_asked(self) -> bool:
        asked = torch.tensor(float(self.signals.received is not None), device=self.accelerator.device)
        return bool(total(asked))

    def _stop(self) -> None:
        self.save()
        raise self._stopped()

    def _stopped(self) -> Stopped:
        here = self.progress
        return Stopped(
            f"stopped by {self.signals.received or 'a signal'} and saved at step {here.step} (epoch {here.epoch + 1}, "
            f"update {here.batch}); run the same command to resume"
        )


def _epoch_line(values: Row, epochs: int, spec: TaskSpec, evaluated: bool) -> str:
    loss = values["train_loss"]
    parts = [f"epoch {values['epoch']}/{epochs}", f"loss {'-' if loss is None else format(loss, '.3f')}"]
    parts += [f"{name} {values[key]:.2f} %" for key, name in spec.shown.items() if values.get(key) is not None]
    if evaluated and values.get(spec.best) is None:
        parts.append("nothing to score")
    return ", ".join([*parts, format_rate(values["images_per_second"] or 0.0, spec.unit)])
