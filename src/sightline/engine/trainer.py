"""The training loop: updates, evaluations, checkpoints; stopped anywhere, it goes on as if it had not been."""

import math
import time
from itertools import islice
from typing import Any

import torch

from sightline.data.order import derive
from sightline.engine.checkpoint import BEST, WEIGHTS, Checkpoints, Saved, write_weights
from sightline.engine.config import AnyConfig
from sightline.engine.distributed import gather, total
from sightline.engine.errors import NonFiniteError, Stopped
from sightline.engine.optimize import make_average, make_optimizer, make_schedule
from sightline.engine.progress import Display
from sightline.engine.run_folder import RunFolder
from sightline.engine.signals import StopSignals
from sightline.engine.state import Progress, capture, full_weights, is_sharded, restore
from sightline.engine.step import Stepper
from sightline.engine.sync import FlagReader, Flags
from sightline.engine.values import ConfigError
from sightline.tasks.registry import TASKS, TaskSpec


class Trainer:
    """A run from its first update, or from a checkpoint, to its last evaluation.

    Args:
        config: of the run.
        task: model, batches, loss and evaluation.
        accelerator: Accelerate's engine.
        folder: of the run in the first process, None in the others.
        signals: that ask to stop.
        board: TensorBoard's writer, or None.
    """

    def __init__(
        self, config: AnyConfig, task: Any, accelerator: Any, folder: RunFolder | None, signals: StopSignals, board: Any
    ) -> None:
        self.config, self.task, self.accelerator = config, task, accelerator
        self.spec = TASKS[config.task]
        self.folder, self.signals, self.board = folder, signals, board
        self.raw = task.model
        optimizer = make_optimizer(self.raw, config)
        self.average = make_average(self.raw, config)
        if config.model.compile:
            for model in (self.raw, *([self.average.module] if self.average else [])):
                model.compile(mode=config.model.compile_mode)
        self.model, self.optimizer = accelerator.prepare(self.raw, optimizer)
        self.raw = accelerator.unwrap_model(self.model)
        self.sharded = is_sharded(self.raw)
        if self.sharded and self.average is not None:
            raise ConfigError("ema.decay: averaged weights are not available with FSDP; give --ema.decay 0")
        if self.sharded and config.optim.clip is not None and config.optim.clip_mode == "agc":
            raise ConfigError("optim.clip_mode: agc is not available with FSDP; give norm or value")
        self.schedule, self.epochs = make_schedule(optimizer, config, task.order.steps)
        self.stepper = Stepper(accelerator, task, self.model, self.optimizer, config.optim)
        self.flags = FlagReader(lag=accelerator.device.type == "cuda" and not config.run.skip_nonfinite)
        self.progress = Progress()
        main, every = accelerator.is_main_process, config.run.log_every
        self.display = Display(main, self.epochs, task.order.steps, config.batch.size, every, self.spec.unit)
        self.saved_at = self.started = time.monotonic()
        self.last: Any = None  # the evaluation of the last epoch
        self.rate = 0.0  # examples a second of the last epoch, evaluation aside

    def resume(self, checkpoints: Checkpoints) -> bool:
        """Go on from the newest complete checkpoint; false where there is none."""
        saved = checkpoints.latest()
        if saved is None:
            return False
        self._check_data(saved)
        self.progress = restore(saved, self.raw, self.average, self.optimizer, self.accelerator.scaler)
        self.task.broken.update(dict.fromkeys(self.progress.broken))
        where = f"epoch {self.progress.epoch + 1}, update {self.progress.batch}"
        self.display.say(f"resuming from {saved.path}: {where}, step {self.progress.step}")
        return True

    def _check_data(self, saved: Saved) -> None:
        """Refuse to go on with other images or classes than the run was started with."""
        images, classes = self.task.order.images, list(self.task.card.classes)
        if saved.record.get("classes", classes) != classes:
            raise ConfigError(
                f"data.path: the classes are not those that {saved.path} was trained on; give the same data"
            )
        if (before := saved.record.get("images", images)) != images:
            raise ConfigError(
                f"data.path: {images:,} training {self.spec.unit}, but {saved.path} was trained on {before:,}; give "
                f"the same data"
            )

    def fit(self) -> Progress:
        """Train to the end.

        Raises:
            Stopped: a signal came; the state is saved.
            NonFiniteError: a loss or gradient is not finite.
            SaveError: a checkpoint could not be written.
        """
        try:
            while self.progress.epoch < self.epochs and not self._enough():
                self._train_epoch()
                self._finish_epoch()
        finally:
            self.display.stop()
        return self.progress

    def _enough(self) -> bool:
        limit = self.config.run.max_steps
        return limit is not None and self.progress.step >= limit

    def _train_epoch(self) -> None:
        here, order = self.progress, self.task.order
        self.model.train()
        self.display.begin(here.epoch, here.batch)
        batches = iter(self.task.batches(here.epoch, here.batch)) if here.batch < order.steps else iter(())
        while here.batch < order.steps and not self._enough():
            parts = list(islice(batches, order.accumulate))
            flags = self._update(parts)
            self.display.update(here.epoch, here.batch, here.mean_loss, self.optimizer.param_groups[0]["lr"])
            if flags is not None and flags.stop:
                self._stop()
            if self._due():
                self.save()
        self._take(self.flags.flush())
        self.rate = self.display.rate()

    def _update(self, parts: list[Any]) -> Flags | None:
        """One update; what is known of it, or of the one before, afterwards."""
        here, order = self.progress, self.task.order
        # What the model draws (stochastic depth, dropout) follows from the step alone, not from what ran before.
        torch.manual_seed(derive(order.seed, here.step, order.rank, 4))
        self.schedule.step_update(here.step)
        values = self.stepper.gradients(parts, self.signals.received is not None)
        flags = self.flags.push(values)
        here.step, here.batch = here.step + 1, here.batch + 1
        self._take(flags)
        if flags is not None and flags.bad and not self.flags.lag:
            self.stepper.skip()
        else:
            self.stepper.apply()
            if self.average is not None:
                self.average.update(self.raw, here.step)
        return flags

    def _take(self, flags: Flags | None) -> None:
        """Note the loss of an update, or what was wrong with it."""
        here = self.progress
        if flags is None:
            return
        if not flags.bad:
            here.loss_sum, here.losses = here.loss_sum + flags.loss, here.losses + 1
            return
        here.skipped += 1
        allowed = self.config.run.skip_nonfinite
        late = int(self.flags.lag)
        what = "the loss" if not math.isfinite(flags.loss) else "the gradient"
        where = f"step {here.step - late}, epoch {here.epoch + 1}, batch {here.batch - late}"
        if here.skipped > allowed:
            after = f", after {allowed} that were skipped" if allowed else ""
            raise NonFiniteError(
                f"{where}: {what} is not finite{after}; the last good checkpoint is kept; go on from it skipping such "
                f"batches with --run.skip_nonfinite N, or start in another folder with a lower optim.lr or optim.clip"
            )
        self.display.say(f"{where}: {what} is not finite; skipped ({here.skipped} of {allowed})")

    def _finish_epoch(self) -> None:
        """Evaluate, log, keep the best weights, save."""
        here, run = self.progress, self.config.run
        last = here.epoch + 1 >= self.epochs or self._enough()
        if last or (here.epoch + 1) % run.eval_every == 0:
            self.last = self._evaluate()
        else:
            self.last = None
        self._log()
        if here.batch >= self.task.order.steps:  # not where run.max_steps ended it before
            here.next_epoch()
        stop = self._stop_asked()
        if last or here.epoch % run.save_every == 0 or stop:
            self.save()
        if stop:
            raise self._stopped()

    def _evaluate(self) -> Any:
        model = self.raw if self.average is None else self.average.module
        done, images = 0, len(self.task)

        def note(count: int) -> None:
            nonlocal done
            done += count * self.accelerator.num_processes
            if self.display.bar is not None:
                self.display.note("evaluation", min(done, images), images)
            if self.signals.received and self.accelerator.num_processes == 1:  # several agree when it is over
                self._stop()

        return self.task.evaluate(
            model,
            device=self.accelerator.device,
            precision=self.config.run.precision,
            reduce=total,
            gather=gather,
            on_batch=note,
        )

    def _log(self) -> None:
        here = self.progress
        values = {
            "epoch": here.epoch + 1,
            "step": here.step,
            "train_loss": here.mean_loss,
            "lr": self.optimizer.param_groups[0]["lr"],
            "images_per_second": round(self.rate, 1),
        }
        if self.last is not None:
            values |= {"val_loss" if name == "loss" else name: _finite(value) for name, value in self.last}
            self._keep_best(values.get(self.spec.best))
        if here.skipped or self.task.broken:
            values |= {"skipped_batches": here.skipped, "skipped_images": len(self.task.broken)}
        if self.folder is not None:
            self.folder.log(values)
        if self.board is not None:
            for name, value in values.items():
                if name not in ("epoch", "step") and value is not None:
                    self.board.add_scalar(name, value, here.step)
            self.board.flush()
        self.display.say(_line(values, self.epochs, self.spec, self.last is not None))

    def _keep_best(self, score: float | None) -> None:
        """Keep weights that are better than all before; until there is a score at all, the newest."""
        here = self.progress
        if here.best is not None and (score is None or not score > here.best):
            return
        if score is not None:
            here.best, here.best_epoch = score, here.epoch + 1
        weights = full_weights(self.raw if self.average is None else self.average.module)
        if self.folder is not None and self.last is not None:
            write_weights(self.folder.checkpoints / BEST / WEIGHTS, weights, self.task.card)
            self.folder.keep_evaluation(self.last, self.task.card.classes)

    def _due(self) -> bool:
        run, step = self.config.run, self.progress.step
        if run.save_steps is not None and step % run.save_steps == 0:
            return True
        if self.sharded:  # all processes must save together, and their clocks differ
            return False
        return run.save_minutes is not None and time.monotonic() - self.saved_at > 60 * run.save_minutes

    def save(self) -> None:
        """Write a checkpoint, once all that came before it is known to be good."""
        self._take(self.flags.flush())
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
            Checkpoints(self.folder.checkpoints, self.display.say).save(weights, self.task.card, tensors, record)

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
            f"update {here.batch}); give the same command to resume"
        )


def _finite(value: float | None) -> float | None:
    """JSON has no other numbers, and nothing can be better than nan."""
    return value if value is not None and math.isfinite(value) else None


def _line(values: dict[str, Any], epochs: int, spec: TaskSpec, evaluated: bool) -> str:
    loss = values["train_loss"]
    parts = [f"epoch {values['epoch']}/{epochs}", f"loss {'-' if loss is None else format(loss, '.3f')}"]
    parts += [f"{words} {values[key]:.2f} %" for key, words in spec.shown.items() if values.get(key) is not None]
    if evaluated and values.get(spec.best) is None:
        parts.append("nothing to score")
    return ", ".join([*parts, f"{values['images_per_second']:,.0f} {spec.unit}/s"])
