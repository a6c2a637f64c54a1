"""A recipe names its task; keys of another task are rejected."""

from pathlib import Path

import pytest

from sightline.engine.run_folder import differences
from sightline.engine.settings import all_keys, load_recipe, to_yaml
from sightline.engine.settings import configure as resolve
from sightline.tasks.classification.config import Config
from sightline.tasks.detection.config import Config as DetectionConfig
from sightline.tasks.registry import TASKS
from sightline.tasks.segmentation.config import Config as SegmentationConfig
from sightline.util.errors import InputError


def test_every_task_has_a_metric() -> None:
    assert all(spec.best in spec.shown for spec in TASKS.values())


def test_the_recipe_chooses() -> None:
    assert type(resolve({})) is Config
    assert type(resolve({"task": "segmentation"})) is SegmentationConfig
    assert type(resolve({"task": "detection"}, {"model.head": "retinanet"})) is DetectionConfig


def test_a_configuration_reads_back(tmp_path: Path) -> None:
    config = resolve({"task": "segmentation", "test": {"scales": [0.5, 1.0]}})
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(config))
    assert resolve(load_recipe(str(path))) == config


def test_another_task_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(resolve({})))
    assert differences(tmp_path, resolve({})) == []
    assert differences(tmp_path, resolve({"task": "detection"})) == ["task"]


def test_a_run_from_before_tasks_resumes(tmp_path: Path) -> None:
    text = to_yaml(resolve({})).replace("task: classification\n", "")
    (tmp_path / "config.yaml").write_text(text)
    assert differences(tmp_path, resolve({})) == []


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"task": "detektion"}, "did you mean 'detection'?"),
        ({"task": 3}, "no task 3"),
        ({"task": "segmentation", "augment": {"mixup": 1.0}}, "no key 'augment.mixup'"),
        ({"task": "segmentation", "distill": {}}, "no key 'distill'"),
        ({"task": "detection", "augment": {"sizes": []}}, "augment.sizes"),
        ({"task": "segmentation", "augment": {"scale": [2.0, 0.5]}}, "is reversed"),
        ({"task": "segmentation", "model": {"head": "unet"}}, "model.head"),
    ],
)
def test_what_does_not_fit_is_one_line(recipe: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(recipe)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_arguments_belong_to_a_name() -> None:
    recipe = {"model": {"name": "inline_deit_tiny", "args": {"depths": 2}, "drop_path": 0.1}}
    for changes, args in (
        ({}, {"depths": 2}),
        ({"model.name": "inline_deit_tiny"}, {"depths": 2}),
        ({"model.name": "inline_swin_tiny"}, {}),
        ({"model.args": {"depths": 3}, "model.name": "inline_swin_tiny"}, {"depths": 3}),
        ({"model": {"name": "inline_swin_tiny", "args": {"depths": 3}}}, {"depths": 3}),
    ):
        model = resolve(recipe, changes).model
        assert (model.args, model.drop_path) == (args, 0.1)


def test_a_recipe_with_another_model_than_its_base(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: photos\nmodel: {name: inline_swin_tiny}\n")
    assert "args" not in load_recipe(str(tmp_path / "mine.yaml"))["model"]


def test_keys_of_all_tasks_are_options() -> None:
    assert {"augment.mixup", "test.scales", "data.short", "augment.sizes", "loss.auxiliary"} <= set(all_keys())
