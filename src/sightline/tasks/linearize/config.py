"""Configuration of a linearization: images, teacher, student and losses.

Nothing heavy is imported here, so that `sightline linearize --help` stays fast.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from sightline.tasks import config
from sightline.tasks.classification import config as classification
from sightline.util.errors import InputError
from sightline.util.schema import Amount, Count, Natural, Number, Side, entry


@dataclass(frozen=True)
class Data(classification.Data):
    """Images to train on, which need no labels, and labeled ones to evaluate."""

    images: tuple[str, ...] = entry((), "folders, zip files or patterns of images to train on; labels are not needed")
    path: str | None = entry(
        None, "labeled images to evaluate: folder, tar file, WebDataset folder or hfds/NAME; by default some of "
        "data.images are held out and the student is compared with its teacher",
    )  # fmt: skip
    hold_out: Count = entry(1000, "images of data.images to evaluate on if data.path is not given; at most a tenth")
    preload: bool = entry(True, "decode once, keep as uint8 in device memory, and augment whole batches there")
    preload_whole: bool = entry(False, "random resized crops of preloaded images up to 3:2 or 2:3, not of their middle")


@dataclass(frozen=True)
class Model(classification.Model):
    """The teacher."""

    name: str = entry("vit_tiny_patch16_224", "the teacher: a vision transformer of timm, or a model of sightline")


@dataclass(frozen=True)
class Linearize:
    """The student, and what it learns."""

    attention: str = entry(
        "auto", "mechanism of the student, or a pattern (see `sightline list --attention`); auto: InLine attention, in "
        "a plain vision transformer with windows and agents",
    )  # fmt: skip
    keep: Natural | tuple[Natural, ...] = entry(0, "blocks that keep softmax: their number, or a list from 0 on")
    start: str | tuple[str, ...] | None = entry(
        None, "weights of the student to start from, a file or run folder, or several: the last with the mechanism of "
        "a block has its attention, the last of all everything else; by default the teacher's",
    )  # fmt: skip
    stage: Literal[1, 2] = entry(
        2, "1: each attention learns the teacher's, with the teacher's inputs; 2: the whole student learns its outputs"
    )
    logits: Amount = entry(1.0, "weight of the divergence of the classes, in stage 2")
    temperature: Annotated[Number, Field(ge=0.01)] = entry(1.0, "of the classes that diverge, in stage 2")
    tokens: Amount = entry(1.0, "weight of the error of the final tokens, in stage 2")
    hidden: Amount = entry(0.0, "weight of the error of the tokens after each block or stage, in stage 2")
    blocks: Amount = entry(0.0, "weight of the loss of stage 1, in stage 2")
    teacher_size: Side | None = entry(
        None, "pixels of the images as the teacher sees them, in stage 2; by default those of the student. A student "
        "for larger images learns from a teacher that sees them small: its classes, not its tokens",
    )  # fmt: skip


@dataclass(frozen=True)
class Config(config.RunConfig):
    """The configuration of a linearization."""

    task: Literal["linearize"] = "linearize"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: classification.Augment = field(default_factory=classification.Augment)
    linearize: Linearize = field(default_factory=Linearize)

    def __post_init__(self) -> None:
        super().__post_init__()
        loss = self.linearize
        if loss.stage == 2 and not (loss.logits or loss.tokens or loss.hidden or loss.blocks):
            raise InputError("linearize.logits: all weights of the loss are 0; give one of them")
        if loss.teacher_size and loss.stage == 2 and (not loss.logits or loss.tokens or loss.hidden or loss.blocks):
            raise InputError(
                "linearize.teacher_size: tokens of two sizes cannot be compared; give linearize.tokens=0, "
                "linearize.hidden=0 and linearize.blocks=0, and linearize.logits above 0"
            )
        if self.optim.layer_decay is not None:
            raise InputError("optim.layer_decay: not for linearization; leave it out")
        if self.augment.progressive:
            raise InputError("augment.progressive: not for linearization; leave it out")
