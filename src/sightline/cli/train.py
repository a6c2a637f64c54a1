"""`sightline train`: train a model from a recipe."""

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from sightline.cli.options import Command, option
from sightline.engine.settings import all_keys, configure, default_recipe, load_recipe, parse, to_yaml, unknown_option
from sightline.util.text import say

WELCOME = (
    "A small InLine model learns ten kinds of clothes from 10,000 embedded images: about a minute on two idle cores.",
    "The last line says where its report is. `sightline train --help` shows how to train on your own images.",
)
ALIASES = {
    "--data": "--data.path",
    "--model": "--model.name",
    "--out": "--run.folder",
    "--print_config": "--print-config",
}


@dataclass(frozen=True)
class Options:
    """Train a classifier. Without arguments: a small InLine model on an embedded dataset, in about a minute.

    The recipes upernet* and semantic_fpn* train segmenters, retinanet* and *mask_rcnn* detectors, lra_* models of
    sequences. Every key of the configuration is an option. A recipe sets some of them, the command line overrides it. A
    run that was interrupted, killed or stopped resumes when the same command is given again. Exit status: 0 for a
    complete run, 75 if a signal stopped it and its state is saved, 2 for bad input, 1 for other failures.
    """

    config: str | None = option(
        "packaged recipe, such as imagenette or inline_swin_tiny, or a YAML file; by default photos, or quick without "
        "--data",
        metavar="RECIPE",
    )
    print_config: bool = option("print the resolved configuration and stop", default=False)
    settings: dict[str, str] = field(
        default_factory=dict,
        metadata={
            "keys": lambda: ((key, item.metadata["help"]) for key, item in all_keys().items()),
            "unknown": unknown_option,
        },
    )


def run(options: Options) -> None:
    """Train; the last line says where everything is."""
    overrides: dict[str, Any] = {key: parse(text, key) for key, text in options.settings.items()}
    recipe = default_recipe(overrides) if options.config is None else options.config
    if options.print_config:
        sys.stdout.write(to_yaml(configure(load_recipe(recipe), overrides)))
        return
    if options.config is None and not overrides:  # the first thing that many people try: answer at once
        say(*WELCOME)
    from sightline.engine.distributed import PeerError
    from sightline.engine.train import train
    from sightline.util.errors import RunError

    try:
        train(recipe, **overrides)
    except (RunError, ValueError, OSError) as error:
        # Rank 0 prints what all processes found; every process prints that another one is gone.
        if isinstance(error, PeerError) or int(os.environ.get("RANK", "0")) == 0:
            raise
        raise SystemExit(getattr(error, "status", 2)) from error


COMMAND = Command(
    Options,
    run,
    help="train a model; without arguments a small classifier on embedded data",
    examples=(
        "  sightline train\n"
        "  sightline train --data photos\n"
        "  sightline train --config imagenette_80 --data imagenette2-160\n"
        "  sightline train --config finetune --data photos --model inline_swin_tiny\n"
        "  sightline train --config inline_deit_tiny --print-config > mine.yaml\n"
        "  torchrun --nproc-per-node 8 -m sightline train --config inline_swin_tiny --data imagenet"
    ),
    usage="sightline train [--config RECIPE] [--data PATH] [--out FOLDER] [--SECTION.KEY VALUE ...]",
    aliases=ALIASES,
)
