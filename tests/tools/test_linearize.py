"""The tools around `sightline linearize`: what a search puts together, and the tables of the documentation."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import measure_linearize
import search_linearize
from tables import linearize as tables

from sightline.engine.settings import configure, load_recipe
from sightline.layers.spec import Spec
from sightline.models.linearize import PLAIN
from sightline.util.errors import FileError, InputError

VERSIONS = {"device": "1 x cuda (CARD)", "torch": "2.0", "timm": "1.0", "commit": "0123456789", "command": "python x"}


def test_what_helped_is_put_together() -> None:
    trials = {
        "as it is": {}, "rate": {"optim.lr": 1.0}, "higher": {"optim.lr": 2.0}, "less": {"ema.decay": 0.5},
        "key": {"linearize.attention": "inline(key_norm=true)"},
        "map": {"linearize.attention": "inline(head_map=true)"}, "broken": {"batch.size": 1},
    }  # fmt: skip
    apart = {"as it is": 0.50, "rate": 0.49, "higher": 0.48, "less": 0.51, "key": 0.46, "map": 0.47}
    rows: dict[str, Any] = {name: {"divergence": value} for name, value in apart.items()}
    made = search_linearize.combined({**rows, "broken": {"error": "no"}}, trials)
    assert set(made) == {"the best 2", "the best 3", "the best 4"}
    assert made["the best 2"] == {"linearize.attention": "inline(key_norm=true)"}
    assert made["the best 4"] == {**made["the best 2"], "optim.lr": 2.0}
    assert search_linearize.combined({}, trials) == {}


def test_all_trials_are_settings() -> None:
    for changes in search_linearize.read_trials(search_linearize.TRIALS, None).values():
        own = {key: value for key, value in changes.items() if not key.startswith(search_linearize.STAGE1)}
        config = configure(load_recipe("linearize"), {"data.images": ("x",), **own})
        attention = config.linearize.attention
        Spec.parse(PLAIN if attention == "auto" else attention).build(192, 3, 16)
    for name in measure_linearize.MECHANISMS:
        Spec.parse(name).build(192, 3, 16)


@pytest.mark.parametrize(
    ("text", "only", "told"),
    [
        ("- inline", None, "trials.yaml"),
        ("inline: 3", None, "inline"),
        ("inline: [", None, "not YAML"),
        ("inline: {}", "linear", "'linear'"),
    ],
)
def test_broken_trials(tmp_path: Path, text: str, only: str | None, told: str) -> None:
    path = tmp_path / "trials.yaml"
    path.write_text(text)
    with pytest.raises((FileError, InputError), match=told):
        search_linearize.read_trials(path, only)


def test_some_trials() -> None:
    assert list(search_linearize.read_trials(search_linearize.TRIALS, "no hidden,inline")) == ["no hidden", "inline"]


@pytest.fixture
def results(tmp_path: Path) -> Any:
    def write(*rows: dict[str, Any]) -> Path:
        path = tmp_path / "rows.json"
        path.write_text(json.dumps({"versions": VERSIONS, "rows": rows}))
        return path

    return write


def test_tables(results: Any) -> None:
    top = {"top1": 70.0, "standard_error": 1.02, "images": 2000}
    step = {"attention": "mala", "softmax": 3, "agreement": 80.0, "stage1_errors": [0.1, 0.3]}
    trial = {"trial": "rate", "divergence": 0.25, "agreement": 70.0}
    page = tables.search_section(results({**trial, "changes": {"optim.lr": 1e-3}, **top}, {**trial, "changes": {}}))
    assert "| rate | `optim.lr=0.001` | 0.2500 | 70.00 | 70.00 ± 1.02 of 2,000 |\n" in page
    assert "| rate | - | 0.2500 | 70.00 | - |" in page
    page = tables.ladder_section(results({**step, **top, "images_per_second_224": 1000.0}, {"error": "no"}))
    assert "CARD, torch 2.0, timm 1.0, commit 0123456" in page
    assert "| `mala` | 3 | 70.00 ± 1.02 of 2,000 | 80.00 | 0.200 | 1,000 |" in page
    later = tables.ladder_section(results({**step, **top, "commit": "aaaaaaaaaa", "timed_at": "bbbbbbbbbb"}))
    assert "commits 0123456, aaaaaaa, bbbbbbb." in later
    page = tables.resolution_section(results({"model": "student", "size": 384, "trained": True, **top}))
    assert "| student | 384 | yes | 70.00 ± 1.02 of 2,000 | - |" in page
    tuned = {"task": "camvid", "start": "random", "recipe": "camvid", "epochs": 200, "miou": 59.65}
    assert "| camvid | random | `camvid` | 200 | 59.65 mIoU |" in tables.finetune_section(results(tuned))
    student = {"attention": "inline", "softmax": 1, "blocks": [4], "stage1_epochs": 1, "epochs": 4, "seconds": 58.4}
    page = tables.students_section(results({**student, "agreement": 80.0, **top}))
    assert "| `inline` | 4 | 1 + 4 | 58 | 80.00 | 70.00 ± 1.02 of 2,000 |" in page
    timed = {"size": 224, "batch": 32, "ms": 2.0, "images_per_second": 16000.0}
    page = tables.compiled_section(results({**timed, "model": "teacher"}, {**timed, "ms": 1.0, "model": "student"}))
    assert "| 224 | 32 | 16,000 | 16,000 | 2.00 |" in page
    page = tables.ladder_section(results({**step, **top, "command": "python first"}, {**step, **top}))
    assert f"`python first`, `{VERSIONS['command']}`" in page
    assert tables.ladder_section(Path("nothing.json")) == ""
