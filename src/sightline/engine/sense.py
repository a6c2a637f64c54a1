"""Values of a configuration that are right by themselves and make no sense together."""

from sightline.engine.config import Config
from sightline.engine.values import ConfigError


def check_sense(config: Config) -> Config:
    """The configuration itself.

    Raises:
        ConfigError: some of its values contradict each other.
    """
    schedule, distill = config.schedule, config.distill
    if schedule.warmup_epochs > schedule.epochs:
        raise ConfigError(
            f"schedule.warmup_epochs: {schedule.warmup_epochs:g} is longer than the {schedule.epochs} epochs of "
            f"schedule.epochs; give at most as many"
        )
    for key in ("scale", "ratio"):
        low, high = getattr(config.augment, key)
        if low > high:
            raise ConfigError(f"augment.{key}: [{low:g}, {high:g}] is reversed; give [{high:g}, {low:g}]")
    if distill.teacher is None and (distill.checkpoint is not None or distill.args):
        key = "checkpoint" if distill.checkpoint is not None else "args"
        raise ConfigError(f"distill.{key}: there is no teacher for it; name one with --distill.teacher")
    return config
