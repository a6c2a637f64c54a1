"""Values of a configuration that are right by themselves and make no sense together."""

from typing import TypeVar

from sightline.engine.config import AnyConfig, Config, DetectionConfig, SegmentationConfig, SequenceConfig
from sightline.engine.values import ConfigError

Some = TypeVar("Some", bound=AnyConfig)


def check_sense(config: Some) -> Some:
    """The configuration itself.

    Raises:
        ConfigError: some of its values contradict each other.
    """
    schedule = config.schedule
    if schedule.warmup_epochs > schedule.epochs:
        raise ConfigError(
            f"schedule.warmup_epochs: {schedule.warmup_epochs:g} is longer than the {schedule.epochs} epochs of "
            f"schedule.epochs; give at most as many"
        )
    if schedule.name == "linear" and schedule.warmup_epochs == schedule.epochs:
        raise ConfigError(
            f"schedule.warmup_epochs: the warm-up takes all {schedule.epochs} epochs of schedule.epochs, and a linear "
            f"schedule falls after it; give the warm-up fewer"
        )
    if isinstance(config, SequenceConfig):
        _check_sizes(config)
    else:
        _check_augment(config)
    if isinstance(config, Config):
        _check_distill(config)
    if isinstance(config, SegmentationConfig | DetectionConfig):
        _check_dense(config)
    return config


def _check_sizes(config: SequenceConfig) -> None:
    for key in ("train", "val", "test"):
        if config.data.path is not None and getattr(config.data, key) is not None:
            raise ConfigError(f"data.{key}: for data that are generated; leave it out, or --data")


def _check_augment(config: Config | SegmentationConfig | DetectionConfig) -> None:
    for key in ("scale", "ratio") if isinstance(config, Config) else ("scale",):
        low, high = getattr(config.augment, key)
        if low > high:
            raise ConfigError(f"augment.{key}: [{low:g}, {high:g}] is reversed; give [{high:g}, {low:g}]")
    if isinstance(config, DetectionConfig) and not config.augment.sizes:
        raise ConfigError("augment.sizes: it is empty; give short sides such as [480, 800]")


def _check_distill(config: Config) -> None:
    distill = config.distill
    if distill.teacher is None and (distill.checkpoint is not None or distill.args):
        key = "checkpoint" if distill.checkpoint is not None else "args"
        raise ConfigError(f"distill.{key}: there is no teacher for it; name one with --distill.teacher")


def _check_dense(config: SegmentationConfig | DetectionConfig) -> None:
    for key in ("mean", "std"):
        if len(values := getattr(config.data, key)) != 3:
            raise ConfigError(f"data.{key}: {len(values)} numbers; give three, one for each channel of a colour image")
    if config.model.args.get("in_chans", 3) != 3:
        raise ConfigError("model.args: in_chans is 3 for segmentation and detection; leave it out")
    if isinstance(config, SegmentationConfig) and not config.test.scales:
        raise ConfigError("test.scales: it is empty; give factors such as [1.0]")
