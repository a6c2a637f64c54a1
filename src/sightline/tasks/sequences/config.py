"""Configuration of a run on sequences: data, model and loss.

Nothing heavy is imported here, so that `sightline train --help` stays fast.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from sightline.tasks import config
from sightline.util.errors import InputError
from sightline.util.schema import Count, Dropout, Natural, Seed, entry

LEVEL = ("dashes", "distractors", "curriculum")  # keys of pathfinder
TaskName = Literal["listops", "text", "retrieval", "image", "pathfinder"]


@dataclass(frozen=True)
class Data:
    """Which sequences."""

    path: str | None = entry(None, "folder with the files as published; not needed for listops and pathfinder")
    name: TaskName = entry("listops", "the task of the Long Range Arena")
    length: Count | None = entry(None, "longer sequences are cut to this many tokens; by default as published")
    train: Count | None = entry(None, "examples to generate for training; by default as published")
    val: Count | None = entry(None, "examples to generate for validation; by default as published")
    test: Count | None = entry(None, "examples to generate for the test; by default as published")
    dashes: Annotated[Count, Field(ge=2, le=16)] | None = entry(
        None, "pathfinder: dashes of the two long paths, published with 6, 9 and 14; by default 14"
    )
    distractors: Annotated[Natural, Field(le=100)] | None = entry(
        None, "pathfinder: paths of a third as many dashes that distract, if there is room; by default 20 dashes in all"
    )
    curriculum: tuple[Annotated[Count, Field(ge=2, le=16)], ...] = entry(
        (), "pathfinder: dashes of the training images, one after the other in equal parts of the epochs: [4, 6, 9, 14]"
    )
    seed: Seed = entry(0, "seed of the generator, and of the shuffle of published images")
    cache: str | None = entry(None, "cache folder for generated data; by default in the user's cache")
    epoch_steps: Count | None = entry(
        None, "updates per epoch (between evaluations); by default one pass over the data"
    )


@dataclass(frozen=True)
class Model(config.Model):
    """What is trained."""

    name: str = entry("lra_listops", "lra_listops, lra_text, lra_retrieval, lra_image or lra_pathfinder")
    attention: str | None = entry(None, "mechanism of every block, or a pattern; by default softmax")
    drop: Dropout = entry(0.0, "dropout of embeddings, attention and MLPs")


@dataclass(frozen=True)
class Loss:
    """Softmax cross entropy."""

    smoothing: Dropout = entry(0.0, "label smoothing")


@dataclass(frozen=True)
class Config(config.RunConfig):
    """A run on sequences."""

    task: Literal["sequences"] = "sequences"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    loss: Loss = field(default_factory=Loss)

    def __post_init__(self) -> None:
        super().__post_init__()
        data = self.data
        for key in ("train", "val", "test", *LEVEL):
            if data.path is not None and getattr(data, key) not in (None, ()):
                raise InputError(f"data.{key}: only for generated data; leave out either this or data.path")
        for key in LEVEL:
            if data.name != "pathfinder" and getattr(data, key) not in (None, ()):
                raise InputError(f"data.{key}: only for pathfinder, not for {data.name}; leave it out")
