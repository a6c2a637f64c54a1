"""The registry: every task has what the engine, the hub and the commands ask for, and none imports another."""

import re
from pathlib import Path

import pytest

import sightline.tasks
from sightline.tasks.card import ModelCard
from sightline.tasks.registry import TASKS, task_of
from sightline.tasks.sequences.card import SequenceCard

FOLDER = Path(sightline.tasks.__file__).parent


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_its_functions(name: str) -> None:
    spec = TASKS[name]
    assert spec.name == name == spec.config().task
    assert spec.best in spec.shown
    module = spec.module
    assert all(callable(function) for function in (module.make, module.open, module.evaluate, module.predictor))


def test_metadata_name_the_task() -> None:
    image, sequence = ModelCard("vit", classes=("a", "b")).to_metadata(), SequenceCard("lra_listops").to_metadata()
    dense = [image | {"task": task} for task in ("segmentation", "detection")]
    found = [task_of(metadata) for metadata in (image, sequence, *dense)]
    assert [spec and spec.name for spec in found] == ["classification", "sequences", "segmentation", "detection"]
    assert task_of({"model": "vit"}) is None


@pytest.mark.parametrize("name", TASKS)
def test_no_task_imports_a_sibling(name: str) -> None:
    for path in (FOLDER / name).rglob("*.py"):
        imported = set(re.findall(r"from sightline\.tasks\.(\w+)[. ]", path.read_text()))
        own = {name, "classification"} if name == "linearize" else {name}  # which trains classifiers
        assert not imported & (TASKS.keys() - own), path


def test_data_import_no_task() -> None:
    for path in (FOLDER.parent / "data").rglob("*.py"):
        assert "sightline.tasks" not in path.read_text(), path
