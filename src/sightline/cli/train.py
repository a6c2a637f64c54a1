"""`sightline train`: a recipe, data and overrides in; a run folder out."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from sightline.cli.options import Command, UsageError, option
from sightline.engine.settings import DEFAULT_TASK, entries, load_recipe, recipe_names, resolve, to_yaml, unknown_key

DEFAULT = "quick"
ALIASES = {
    "--data": "--data.path",
    "--model": "--model.name",
    "--out": "--run.folder",
    "--print_config": "--print-config",
}


@dataclass(frozen=True)
class Options:
    """Train a classifier. Without arguments: a small InLine model on an embedded data set, in about two minutes.

    The recipes upernet* and semantic_fpn* train segmenters, retinanet* and *mask_rcnn* detectors, lra_* models of
    sequences. Every key of the configuration is an option. A recipe sets some of them, the command line overrides it. A
    run that was interrupted, killed or stopped goes on when the same command is given again. Exit status: 0 when the
    run is complete, 75 when a signal stopped it and its state is saved, 2 for bad input, 1 for other failures.
    """

    config: str | None = option(
        "packaged recipe, such as imagenette or inline_swin_tiny, or a YAML file", metavar="RECIPE"
    )
    print_config: bool = option("print the resolved configuration and stop", default=False)
    settings: dict[str, str] = field(
        default_factory=dict,
        metadata={"keys": lambda: ((key, item.metadata["help"]) for key, item in entries()), "unknown": unknown_key},
    )


def run(options: Options) -> None:
    """Resolve, train; the engine's last line says where everything is."""
    recipe = options.config or DEFAULT
    config = resolve(load_recipe(recipe), options.settings)
    if options.print_config:
        print(to_yaml(config), end="")
        return
    bare = config.task == DEFAULT_TASK and config.data.path is None and config.data.source != "synthetic"
    if bare and recipe != DEFAULT and recipe in recipe_names():
        raise UsageError(f"the recipe {recipe} needs data of its own; give --data PATH")
    from sightline.engine.errors import PeerError, RunError
    from sightline.engine.train import train

    try:
        train(config, Path(recipe).stem)
    except (RunError, ValueError, OSError) as error:
        # What all processes found is said once; that another one is gone, by each that noticed.
        if isinstance(error, PeerError) or int(os.environ.get("RANK", "0")) == 0:
            raise
        raise SystemExit(getattr(error, "status", 2)) from error


COMMAND = Command(
    Options,
    run,
    help="train a model; without arguments a small classifier on embedded data",
    examples=(
        "  sightline train\n"
        "  sightline train --config imagenette_80 --data imagenette2-160\n"
        "  sightline train --config finetune --data photos --model.checkpoint inline_swin_tiny.pth\n"
        "  sightline train --config inline_deit_tiny --print_config > mine.yaml\n"
        "  torchrun --nproc-per-node 8 -m sightline train --config inline_swin_tiny --data imagenet"
    ),
    usage="sightline train [--config RECIPE] [--data PATH] [--out FOLDER] [--SECTION.KEY VALUE ...]",
    aliases=ALIASES,
)
