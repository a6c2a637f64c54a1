"""Records of a run that are damaged or forged: one error, or a run that ends well, but never a traceback."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from sightline.engine.checkpoint import Saved
from sightline.engine.evaluate import run_data
from sightline.engine.report import write_report
from sightline.engine.report.page import run_page
from sightline.engine.report.record import read_record
from sightline.engine.settings import configure as resolve
from sightline.engine.state import Progress, capture, restore
from sightline.util.errors import FileError, InputError
from tests.engine.tiny import RECIPE, make_images, train

DEEP, HUGE = "[" * 5000 + "]" * 5000, "1" + "0" * 400
LAUGHS = "a: &a {x: 1}\n" + "".join(
    f"{after}: &{after}\n  <<: [{', '.join([f'*{before}'] * 9)}]\n" for before, after in pairwise("abcdefghij")
)
VALUES = ["null", '"x"', "-1", "1.5", HUGE, "[]", "{}", '[["x"]]', '{"$items": [1]}', '{"$tensor": "none"}', "1e999"]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The configuration of a run that resumes after its first epoch, and its folder."""
    folder = tmp_path_factory.mktemp("records")
    recipe = {name: dict(values) for name, values in RECIPE.items()}
    recipe["data"]["path"], recipe["run"]["folder"] = str(make_images(folder / "images")), str(folder / "run")
    train(resolve(recipe, {"run.max_steps": "5"}))
    (folder / "run/done.json").unlink()
    return recipe, folder / "run"


def assert_line(call: Callable[[], object], name: str) -> None:
    """A call that works, or raises an error of one line with `name`."""
    try:
        call()
    except (FileError, InputError) as error:
        text = str(error)
    else:
        return
    assert name in text
    assert "\n" not in text
    assert len(text) < 1000


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.AdamW(model.parameters(), 0.1)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def forge(record: Any, key: str, text: str) -> Any:
    """A record with another value for `key`, which may be nested."""
    *parents, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    record = inner = json.loads(json.dumps(record))
    for part in parents:
        inner = inner[part]
    inner[last] = "FORGED"
    return json.loads(json.dumps(record).replace('"FORGED"', text))


@pytest.mark.parametrize(
    "key",
    ["epoch", "batch", "step", "loss_sum", "losses", "skipped", "best", "best_epoch", "broken", "seconds", "optimizer",
     "scaler", "optimizer.$items", "optimizer.$items.0", "optimizer.$items.0.1", "optimizer.$items.0.1.$items.0.0",
     "optimizer.$items.0.1.$items.0.1", "optimizer.$items.1.1.0", "optimizer.$items.1.1.0.$items.0.1",
     "optimizer.$items.1.1.0.$items.1.1", "optimizer.$items.1.1.0.$items.1.1.$tuple.0"],
)  # fmt: skip
def test_a_forged_state(key: str) -> None:
    model, optimizer = make()
    update(model, optimizer)
    weights, tensors, record = capture(Progress(), model, None, optimizer, None)
    for text in VALUES if "1.1.0." not in key else [text for text in VALUES if text not in ("-1", "1.5")]:
        forged = Saved(weights, tensors, forge(record, key, text), Path("last"))
        fresh, other = make()

        def resume(fresh: Any = fresh, other: Any = other, forged: Saved = forged) -> None:
            restore(forged, fresh, None, other, None)
            update(fresh, other)

        assert_line(resume, "last")


@pytest.mark.parametrize("scale", ['"x"', "null", '{"$items": []}'])
def test_a_forged_scale_of_the_rate(scale: str) -> None:
    """timm's schedules multiply by it, in whatever optimizer it is."""
    model, optimizer = make()
    weights, tensors, record = capture(Progress(), model, None, optimizer, None)
    forged: Any = json.loads(json.dumps(record))
    groups = next(value for key, value in forged["optimizer"]["$items"] if key == "param_groups")
    groups[0]["$items"].append(["lr_scale", json.loads(scale)])
    with pytest.raises(FileError, match=r"last.*lr_scale"):
        restore(Saved(weights, tensors, forged, Path("last")), model, None, optimizer, None)


@pytest.mark.parametrize("make_optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
def test_forged_tensors_of_the_optimizer(make_optimizer: Any) -> None:
    options = {"momentum": 0.9} if make_optimizer is torch.optim.SGD else {}
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model.parameters(), 0.1, **options)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    weights, tensors, record = deepcopy(capture(Progress(), model, None, optimizer, None))
    fresh = nn.Linear(3, 2)
    other = make_optimizer(fresh.parameters(), 0.1, **options)
    restore(Saved(weights, deepcopy(tensors), cast(Any, record), Path("last")), fresh, None, other, None)
    assert all(torch.equal(value, fresh.state_dict()[key]) for key, value in weights.items())
    again = capture(Progress(), fresh, None, other, None)[1]
    assert all(torch.equal(value, again[key]) for key, value in tensors.items())
    for key, value in tensors.items():
        for forged in (torch.zeros(7), torch.zeros(0), value[None], value > 0, None):
            changed = {**tensors, key: forged} if forged is not None else {k: v for k, v in tensors.items() if k != key}

            def resume(changed: Any = changed) -> None:
                restore(Saved(weights, deepcopy(changed), cast(Any, record), Path("last")), fresh, None, other, None)
                fresh(torch.ones(1, 3)).sum().backward()
                other.step()

            assert_line(resume, "last")


@pytest.mark.parametrize(
    ("key", "text"), [("epoch", '"x"'), ("optimizer", "null"), ("images", '"x"'), ("epoch", "1000"), ("batch", "1000")]
)
def test_a_forged_checkpoint(unfinished: tuple[Any, Path], tmp_path: Path, key: str, text: str) -> None:
    """With a manifest that vouches for it."""
    recipe, run = unfinished
    last = tmp_path / "run/checkpoints/last"
    shutil.copytree(run, tmp_path / "run")
    (last / "state.json").write_text(json.dumps(forge(json.loads((last / "state.json").read_text()), key, text)))
    data, manifest = (last / "state.json").read_bytes(), json.loads((last / "manifest.json").read_text())
    manifest["files"]["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (last / "manifest.json").write_text(json.dumps(manifest))
    config = resolve({**recipe, "run": {**recipe["run"], "folder": str(tmp_path / "run"), "max_steps": 6}})
    with pytest.raises((FileError, InputError), match=str(tmp_path)):
        train(config)


def write_page(run: Path) -> None:
    run_page(read_record(run), {}, {})


FILES = {
    "classes.json": [json.dumps(["x" * 10**6, "\x1b[31m", "$\\frac{"]), "null", "3", '{"a": 1}', "[1, null]", '"x"'],
    "metrics.jsonl": ["3", "[]", '{"epoch": "x"}', '{"epoch": 1, "top1": "x"}', f'{{"epoch": {HUGE}, "top1": {HUGE}}}',
                      '{"epoch": null, "top1": 1}', '{"epoch": [1]}'],
    "versions.json": ["null", "[1]", f'{{"torch": {HUGE}}}', '{"torch": [[1]]}'],
    "confusion.json": ["3", "[1]", '{"counts": [[1, 2]]}', '{"counts": null}', f"[[{HUGE}]]", '[["x"]]', "[[-1]]"],
    "per_class.json": ["3", "[3]", '[{"top1": "x"}]', f'[{{"class": 1, "top1": {HUGE}}}]'],
    "config.yaml": ["3", LAUGHS, "data: 3", "model: 3", "model: {name: [1], args: 3}",
                    "model: {name: {a: 1}, head: [1]}", "task: [1]", "data: {size: x}",
                    f"data: {{size: {HUGE}0}}", "data: {1: 2}", "a: &a [*a]",
                    "? [1]\n: 2", "base: config.yaml", "data: 2001-01-01", "data: !!binary x", "data: {path: [1]}"],
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_forged_files(unfinished: tuple[Any, Path], tmp_path: Path, name: str) -> None:
    """In the report, in the data that `eval` takes from a run, and in a run that resumes."""
    recipe, run = unfinished
    texts = [*FILES[name], DEEP, "", "{", "\xff", "9" * 5000, "pipe"]
    for number, text in enumerate(texts):
        out = tmp_path / str(number)
        shutil.copytree(run, out, ignore=shutil.ignore_patterns("checkpoints"))
        (out / name).unlink(missing_ok=True)
        os.mkfifo(out / name) if text == "pipe" else (out / name).write_text(text, encoding="latin-1")
        config = resolve({**recipe, "run": {**recipe["run"], "folder": str(out), "max_steps": 1}})
        draw = number == 0 or (name in ("metrics.jsonl", "confusion.json") and "0" in text)
        assert_line(partial(write_report if draw else write_page, out), str(out))
        assert_line(partial(run_data, out, "classification"), "data" if "data: {" in text else str(out))
        if number == 0:
            assert_line(partial(train, config), str(out))


@pytest.mark.parametrize("text", [None, ""])
def test_a_run_whose_configuration_is_lost_is_not_overwritten(
    unfinished: tuple[Any, Path], tmp_path: Path, text: str | None
) -> None:
    recipe, run = unfinished
    out = tmp_path / "run"
    shutil.copytree(run, out)
    config = out / "config.yaml"
    config.unlink() if text is None else config.write_text(text)
    before = (out / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=rf"run\.folder: {out}"):
        train(resolve({**recipe, "run": {**recipe["run"], "folder": str(out)}}))
    assert (out / "metrics.jsonl").read_bytes() == before
    if text is not None:
        with pytest.raises(FileError, match=str(config)):
            run_data(out, "classification")
