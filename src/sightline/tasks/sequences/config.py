"""Configuration of a run on sequences: data, model and loss.

Nothing heavy is imported here, so that `sightline train --help` stays fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sightline.tasks.config import RunConfig
from sightline.tasks.options import entry
from sightline.util.errors import InputError

TaskName = Literal["listops", "text", "retrieval", "image", "pathfinder"]


@dataclass(frozen=True)
class Data:
    """Which sequences."""

    path: str | None = entry(None, "folder with the files as published; not needed for listops and pathfinder")
    name: TaskName = entry("listops", "the task of the Long Range Arena")  # noqa: RUF009
    length: int | None = entry(None, "longer sequences are cut to this many tokens; by default as published", least=1)
    train: int | None = entry(None, "examples to generate for training; by default as published", least=1)
    val: int | None = entry(None, "examples to generate for validation; by default as published", least=1)
    test: int | None = entry(None, "examples to generate for the test; by default as published", least=1)
    seed: int = entry(0, "seed of the generator, and of the shuffle of published images", least=0,
                      most=2**63 - 1)  # fmt: skip
    cache: str | None = entry(None, "cache folder for generated data; by default in the user's cache")
    epoch_steps: int | None = entry(
        None, "updates per epoch (between evaluations); by default one pass over the data", least=1
    )


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str = entry("lra_listops", "lra_listops, lra_text, lra_retrieval, lra_image or lra_pathfinder")
    attention: str | None = entry(None, "mechanism of every block, or a pattern; by default softmax")
    args: Mapping[str, object] = entry({}, "arguments of the model, such as {depth: 4, global_pool: token}")
    checkpoint: str | None = entry(None, "weights to start from, of the same model")
    drop: float = entry(0.0, "dropout of embeddings, attention and MLPs", least=0, most=0.99)
    drop_path: float = entry(0.0, "stochastic depth of the last block", least=0, most=0.99)
    grad_checkpointing: bool = entry(False, "recompute blocks in the backward pass: less memory, more time")
    compile: bool = entry(False, "torch.compile the model")
    compile_mode: str | None = entry(None, "mode of torch.compile, such as max-autotune")


@dataclass(frozen=True)
class Loss:
    """Softmax cross entropy."""

    smoothing: float = entry(0.0, "label smoothing", least=0, most=0.99)


@dataclass(frozen=True)
class Config(RunConfig):
    """A run on sequences."""

    task: Literal["sequences"] = entry("sequences", "what the model is trained for")
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    loss: Loss = field(default_factory=Loss)

    def check(self) -> None:
        """Raise InputError if values contradict each other."""
        super().check()
        for key in ("train", "val", "test"):
            if self.data.path is not None and getattr(self.data, key) is not None:
                raise InputError(f"data.{key}: only for generated data; leave out either this or --data")
