"""What a run on sequences is configured with besides the sections it shares with classification.

Nothing heavy is imported here, so that `sightline train --help` stays fast.
"""

from dataclasses import dataclass
from typing import Literal

from sightline.tasks.options import entry


@dataclass(frozen=True)
class Sequence:
    """Which sequences, where `task` is sequences."""

    name: Literal["listops", "text", "retrieval", "image", "pathfinder"] = entry(
        "listops", "the task; listops and pathfinder are generated where data.path is not given"
    )
    length: int | None = entry(None, "longer sequences are cut to this many tokens; by default as published", least=1)
    train: int | None = entry(None, "examples to train on that are generated; by default as published", least=1)
    val: int | None = entry(None, "examples to generate for validation; by default as published", least=1)
    test: int | None = entry(None, "examples to generate for the test; by default as published", least=1)
    seed: int = entry(0, "seed of the generator, and of the shuffle of published images", least=0)
    cache: str | None = entry(None, "folder that generated data are kept in; by default in the user's cache")
    epoch_steps: int | None = entry(
        None, "updates of an epoch, after which there is an evaluation; by default a pass over the data", least=1
    )
