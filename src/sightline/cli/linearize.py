"""`sightline linearize`: a linear student of a trained softmax model."""

import os
from dataclasses import dataclass

from sightline.cli.options import Command, option, positional
from sightline.engine.settings import parse_changes
from sightline.util.errors import InputError
from sightline.util.schema import Count
from sightline.util.text import say

OWN_OPTIONS = {
    "model.name": "MODEL", "model.checkpoint": "--checkpoint", "data.images": "--data", "data.path": "--eval",
    "linearize.attention": "--attention", "linearize.keep": "--keep", "run.folder": "--out",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Give a trained vision transformer linear attention, and train it to give the outputs of the original.

    Images need no labels. In the first stage each attention learns that of the teacher, with the teacher's inputs; in
    the second the whole student learns the teacher's outputs. Both are runs with the recipes linearize_stage1 and
    linearize; a complete one is not repeated, an interrupted one resumes when the same command is given again. The last
    lines say how often student and teacher agree, how fast they are, and where everything is.
    """

    model: str = positional("the teacher: a vision transformer of timm, or a softmax model of sightline")
    checkpoint: str | None = option("weights of the teacher; by default the published ones", metavar="FILE")
    data: tuple[str, ...] = option(
        "folder, zip file or pattern of images to train on; can be repeated", default=(), metavar="PATH"
    )
    eval: str | None = option("labeled images to evaluate on; by default some of --data are held out", metavar="PATH")
    attention: str = option(
        "mechanism of the student; by default InLine attention, in a plain vision transformer with windows and agents",
        default="auto",
        metavar="NAME",
    )
    keep: str = option("blocks that keep softmax: their number, or a list such as 0,6,11", default="0", metavar="N")
    search: Count | None = option("choose this many blocks to keep softmax, after stage 1", metavar="N")
    no_speed: bool = option("do not measure the speed of teacher and student", default=False)
    stage1_only: bool = option("stop after the first stage", default=False)
    out: str = option("folder of the run", default="runs/linearize", metavar="FOLDER")
    set: tuple[str, ...] = option(
        "a key of the configuration of both stages, as in batch.size=64; can be repeated",
        default=(),
        metavar="KEY=VALUE",
    )
    set1: tuple[str, ...] = option("a key of the first stage only; can be repeated", default=(), metavar="KEY=VALUE")
    set2: tuple[str, ...] = option("a key of the second stage only; can be repeated", default=(), metavar="KEY=VALUE")


def run(options: Options) -> None:
    """Train the student and print what came out."""
    if not options.data:
        raise InputError("--data: no images to train on; give a folder or a zip file")
    if options.search is not None and options.keep != "0":
        raise InputError(f"--keep: {options.keep} blocks, but --search chooses them; leave one of them out")
    keep = _keep(options.keep)
    changes, first, second = (
        parse_changes(texts, name, OWN_OPTIONS)
        for name, texts in (("set", options.set), ("set1", options.set1), ("set2", options.set2))
    )
    from sightline.engine.linearize import linearize_run

    done = linearize_run(
        options.model, options.data, checkpoint=options.checkpoint, attention=options.attention, keep=keep,
        search=options.search or 0, labelled=options.eval, out=options.out, stage1_only=options.stage1_only,
        speed=not options.no_speed, changes=changes, stage1=first, stage2=second,
    )  # fmt: skip
    if int(os.environ.get("RANK", "0")):
        return
    for row in done.speed:
        size, teacher, student = int(row["size"]), row["teacher"], row["student"]
        say(f"{size} px: teacher {teacher:,.1f} images/s, student {student:,.1f} ({student / teacher:.2f}x)")
    say(f"errors by block: {' '.join(f'{error:.3f}' for error in done.errors)}")
    scores = ", ".join(f"{name} {value:.2f} %" for name, value in done.scores.items())
    say(f"{scores}; everything is in {done.folder}")


def _keep(text: str) -> int | tuple[int, ...]:
    parts = [part.strip() for part in text.strip("[]").split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise InputError(
            f"--keep: expected a number of blocks, or a list such as 0,6,11 (--search chooses them); got {text!r}"
        )
    numbers = tuple(map(int, parts))
    return numbers[0] if len(numbers) == 1 and "," not in text and "[" not in text else numbers


COMMAND = Command(
    Options,
    run,
    help="give a trained vision transformer linear attention",
    keys=OWN_OPTIONS,
    examples=(
        "  sightline linearize vit_tiny_patch16_224 --checkpoint vit.safetensors --data photos\n"
        "  sightline linearize deit_small_patch16_224 --data a.zip --data b --keep 3 --eval imagenet/val\n"
        "  sightline linearize vit_tiny_patch16_224 --data photos --search 3 --set2 schedule.epochs=300"
    ),
)
