"""A run on sequences: order, training, resumption, evaluation and the table, on data small enough for tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from sightline.cli.main import main
from sightline.data.order import Placement
from sightline.engine.arena import configure as configure_arena
from sightline.engine.settings import configure as resolve
from sightline.engine.settings import load_recipe, parse, recipe_names, to_dict
from sightline.hub import load
from sightline.models.sequence import SEQUENCE_MODELS
from sightline.tasks.sequences import arena
from sightline.tasks.sequences.card import SequenceCard
from sightline.tasks.sequences.data import SEQUENCE_TASKS
from sightline.tasks.sequences.model import build
from sightline.tasks.sequences.spec import Sequences
from sightline.util.errors import InputError
from tests.engine.tiny import train

SMALL = {
    "data.train": "64",
    "data.val": "20",
    "data.test": "20",
    "data.length": "100",
    "data.epoch_steps": "3",
    "model.args": "{embed_dim: 16, max_length: 128}",
    "batch.size": "8",
    "schedule.epochs": "2",
    "schedule.warmup_epochs": "1",
    "run.precision": "no",
    "run.device": "cpu",
    "run.threads": "1",
    "run.tensorboard": "false",
    "run.report": "false",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


READ = {f"data__{split}": "null" for split in ("train", "val", "test")}  # files, not generated examples


def configure(cache: str, out: Path, task: str = "listops", **more: str) -> Any:
    given = {**SMALL, "data.cache": cache, "run.folder": str(out)}
    given |= {key.replace("__", "."): value for key, value in more.items()}
    return resolve(load_recipe(f"lra_{task}"), {key: parse(value, key) for key, value in given.items()})


def weights(out: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, to the last bit."""
    state = load_file(out / "checkpoints" / "last" / "model.safetensors")
    return {key: value.numpy().tobytes() for key, value in state.items()}


def test_every_example_is_evaluated_once(cache: str, tmp_path: Path) -> None:
    config = configure(cache, tmp_path)
    labels = []
    for rank in range(2):
        placement = Placement(torch.device("cpu"), 8, eval_batch=6, ranks=2, rank=rank)
        task = Sequences(config, placement)
        for ids, some in task.evaluation():
            assert ids.shape[0] == len(some)
            assert task.model(ids).shape == (len(some), 10)
            labels += some.tolist()
    assert sorted(labels) == sorted(task.val.labels.tolist())


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_a_run_ends_and_is_the_same_again(cache: str, tmp_path: Path, task: str) -> None:
    outs = [tmp_path / name for name in "ab"]
    for out in outs:
        assert train(configure(cache, out, task, model__attention="inline")) == out
    assert weights(outs[0]) == weights(outs[1])
    line = json.loads((outs[0] / "metrics.jsonl").read_text().splitlines()[-1])
    assert (line["epoch"], line["step"]) == (2, 6)
    assert {"top1", "val_loss"} <= line.keys()


def test_training_batches_have_one_shape(cache: str, tmp_path: Path) -> None:
    """Sequences of ListOps are up to 2,000 tokens long, and a batch of the recipe has some that nearly are."""
    config = configure(cache, tmp_path, data__length="2000", model__args="{embed_dim: 16}", data__train="512")
    task = Sequences(config, Placement(torch.device("cpu"), 32))
    assert task.shapes == "fixed"
    assert {tuple(ids.shape) for ids, _ in task.batches(0, 0)} == {(32, 2000)}
    assert Sequences(config, Placement(torch.device("cpu"), 2)).shapes == "lengths"


def test_a_curriculum(cache: str, tmp_path: Path) -> None:
    """Training images get more dashes in equal parts of the epochs; those to evaluate stay the same."""
    more = {"data__length": "1024", "model__args": "{embed_dim: 16, max_length: 1024}", "schedule__epochs": "4"}
    config = configure(cache, tmp_path, "pathfinder", data__dashes="6", data__curriculum="[2, 4, 6]", **more)
    task = Sequences(config, Placement(torch.device("cpu"), 64))
    for epoch, level in enumerate((0, 0, 1, 2)):
        ids, labels = next(iter(task.batches(epoch, 0)))
        want, also = task.levels[level].batch(task.order.sequence(epoch)[:64].numpy(), 1024)
        assert torch.equal(ids, want.int())
        assert torch.equal(labels, also)
    assert task.levels[-1] is task.train
    assert len({level.values.tobytes() for level in task.levels}) == 3


def test_an_interrupted_run_resumes_to_the_same_weights(cache: str, tmp_path: Path) -> None:
    train(configure(cache, tmp_path / "whole"))
    train(configure(cache, tmp_path / "parts", run__max_steps="4"))
    (tmp_path / "parts" / "done.json").unlink()
    train(configure(cache, tmp_path / "parts"))
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["inline", "soft_norm(ratio=8)", "nystromformer(landmarks=8)"])
def test_it_learns(cache: str, tmp_path: Path, attention: str) -> None:
    """Reviews of many lengths, told apart by one kind of byte among many."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, letter in (("neg", b"x"), ("pos", b"y")):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(64):
                text = rng.integers(97, 117, rng.integers(20, 90)).astype(np.uint8)
                text[rng.random(len(text)) < 0.3] = letter[0]
                (tmp_path / split / name / f"{i}.txt").write_bytes(text.tobytes())
    more = {"data__epoch_steps": "20", "optim__lr": "3e-3", "model__drop": "0", **READ}
    out = train(
        configure(cache, tmp_path / "run", "text", data__path=str(tmp_path), model__attention=attention, **more)
    )
    assert json.loads((out / "done.json").read_text())["top1"] > 95


def test_what_is_cut_is_counted(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(configure(cache, tmp_path))
    assert "train: 64 of 64 sequences cut to 100 tokens" in capsys.readouterr().out


def test_a_run_is_evaluated(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = train(configure(cache, tmp_path / "run"))
    capsys.readouterr()
    assert main(["eval", "--checkpoint", str(out), "--device", "cpu", "--json", "--out", str(tmp_path / "e")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["task"], facts["split"], facts["examples"], facts["cut"]) == ("listops", "test", 20, 20)
    assert np.trace(np.array(facts["confusion"])) == round(facts["top1"] * 20 / 100)
    assert json.loads((tmp_path / "e" / "eval.json").read_text()) == facts
    kept = {path.name for path in (tmp_path / "e").iterdir()}
    assert kept == {"eval.json", "per_class.csv", "confusion.csv", "confusion.png"}
    assert main(["eval", "--checkpoint", str(out), "--device", "cpu", "--split", "val"]) == 0
    assert "val" in capsys.readouterr().out
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert main(["eval", "--checkpoint", str(out), "--device", "cpu", "--split", "val", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert best["top1"] >= last["top1"] - 1e-3
    picture = tmp_path / "picture.png"
    Image.new("RGB", (32, 32)).save(picture)
    assert main(["predict", "--checkpoint", str(out), str(picture)]) == 2
    assert "sequence model" in capsys.readouterr().err
    assert main(["eval", "--checkpoint", str(out), "--split", "dev"]) == 2
    assert main(["eval", "--checkpoint", str(out), "--img-size", "224"]) == 2
    assert main(["eval", "--checkpoint", str(out), "--limit", "2"]) == 2
    assert "--limit" in capsys.readouterr().err


def test_weights_say_what_they_are(cache: str, tmp_path: Path) -> None:
    config = configure(cache, tmp_path, model__attention="soft_norm")
    train(config)
    loaded = load(tmp_path / "checkpoints" / "best" / "model.safetensors")
    model, card = loaded.model, loaded.card
    assert isinstance(card, SequenceCard)
    assert (card.name, card.task, card.length) == ("lra_listops", "listops", 100)
    assert card.arguments == {"attention": "soft_norm", "embed_dim": 16, "max_length": 128}
    assert SequenceCard.from_metadata(card.to_metadata()) == card
    assert not model.training
    again, _ = build(configure(cache, tmp_path, model__attention="soft_norm").model, config.data)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}


@pytest.mark.parametrize(
    "entry", ['{"task": "none", "length": 5}', '{"task": "text"}', "[", '{"task": "text", "length": -1}']
)
def test_damaged_cards(entry: str) -> None:
    metadata = {**SequenceCard("lra_text").to_metadata(), "sequences": entry}
    with pytest.raises(ValueError, match="damaged"):
        SequenceCard.from_metadata(metadata)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model__name": "lra_text"}, "give lra_listops"),
        ({"model__attention": "inlin"}, "did you mean 'inline'"),
        ({"model__args": "{num_classes: 3}"}, "follows from the task"),
        ({"model__args": "{max_length: 64}"}, "max_length of at least 100"),
        ({"model__args": "{widht: 64}"}, "widht"),
        ({"data__path": "/nowhere", **READ}, "not a folder"),
        ({"data__path": "/nowhere"}, r"data\.train: .*data\.path"),
        ({"batch__size": "65"}, "more than the 64"),
    ],
)
def test_bad_configurations(cache: str, tmp_path: Path, more: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(configure(cache, tmp_path, **more))


def test_tasks_have_keys_of_their_own() -> None:
    with pytest.raises(InputError, match="augment"):
        resolve({"task": "sequences", "augment": {"mixup": 1.0}})
    with pytest.raises(InputError, match="did you mean 'sequences'"):
        resolve({"task": "sequence"})


@pytest.mark.parametrize(("task", "steps"), [("image", 399), ("listops", 130), ("pathfinder", 6240), ("text", 7)])
def test_as_many_updates_as_asked_for(task: str, steps: int, tmp_path: Path) -> None:
    config = configure_arena(task, "softmax", tmp_path, steps=steps, data="x")
    assert config.data.epoch_steps * config.schedule.epochs == steps


def test_the_table(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for key, value in {**SMALL, "data.cache": cache}.items() for word in ("--set", f"{key}={value}")]
    command = ["lra", "listops", "--out", str(tmp_path / "t"), "--steps", "4", *sets, "--attention"]
    assert main([*command, "linear"]) == 0
    capsys.readouterr()
    assert main([*command, "softmax", "--attention", "linear"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert lines["softmax"][2] == lines["linear"][2] == "4"
    assert lines["softmax"][5] == "37.1"
    assert lines["Nystromformer"][1:] == ["37.2"]
    assert "Transformer" not in lines
    assert out.count("run folder") == 1  # the other one was complete
    rows = json.loads((tmp_path / "t" / "results.json").read_text())["rows"]
    assert {row["attention"] for row in rows} == {"softmax", "linear"}
    assert all(row["steps"] == 4 and row["examples"] == 20 for row in rows)
    assert main([*command, "linear", "--attention", "none", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["attention"] for row in printed["rows"]] == ["linear", "none"]
    assert main([*command, "linear", "--set", "optim.lr=1"]) == 2
    assert "optim.lr" in capsys.readouterr().err
    damage = (
        ("linear/metrics.jsonl", "{"), ("linear/metrics.jsonl", '{"images_per_second": "fast"}'),
        ("linear/done.json", "{}"), ("linear/memory.json", '{"bytes": "many"}'), ("results.json", '{"rows": 5}'),
    )  # fmt: skip
    for name, text in damage:
        path = tmp_path / "t" / name
        whole = path.read_text()
        path.write_text(text)
        assert main([*command, "linear"]) == 2
        assert name in capsys.readouterr().err
        path.write_text(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lra", "listop"], "did you mean 'listops'"),
        (["lra", "text", "--attention", "softmax"], "--data"),
        (["lra", "listops", "--attention", "sofmax"], "did you mean 'softmax'"),
        (["lra", "listops", "--steps", "0"], "--steps"),
        (["lra", "listops", "--steps", "9" * 20], "--steps"),
        (["lra", "listops", "--set", "lr"], "KEY=VALUE"),
        (["lra", "listops", "--set", "model.attention=linear"], "model.attention follows from --attention"),
        (["lra", "listops", "--set", "run.folder=x"], "run.folder follows from --out"),
        (["lra", "listops", "--set", "data.name=pathfinder"], "data.name follows from TASK"),
        (["lra", "listops", "--set", "schedule.epochs=4"], "the warm-up takes all 4 epochs"),
        (["lra", "listops", "--attention", "none", "--attention", "linformer(side=3)"], "a sequence has no side"),
        (["lra", "listops", "--out", ""], "--out: the path is empty"),
        (["lra", "listops", "--out", "/dev/null"], "/dev/null"),
        (["lra", "listops", "--set", "optim.rl=1"], "optim.rl"),
        (["lra", "listops", "--set", "data.dashes=6"], "data.dashes: only for pathfinder"),
        (["lra", "pathfinder", "--set", "data.curriculum=[4, 40]"], "data.curriculum"),
        (["lra", "pathfinder", "--data", "x", "--set", "data.dashes=6"], "data.dashes: only for generated data"),
        (["train", "--config", "lra_image"], "image is not generated"),
    ],
)
def test_mistakes_are_a_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_what_cannot_be_tested_is_not_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("basic_train.tsv", "basic_val.tsv"):
        (tmp_path / name).write_text("Source\tTarget\n[MAX 1 2 ]\t2\n", encoding="utf-8")
    assert main(["lra", "listops", "--data", str(tmp_path), "--out", str(tmp_path / "t"), "--attention", "none"]) == 2
    assert "basic_test.tsv" in capsys.readouterr().err
    assert not list((tmp_path / "t").iterdir())


def test_checks_say_nothing_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed may be JSON."""
    (tmp_path / "metadata").mkdir()
    (tmp_path / "imgs").mkdir()
    for number in range(20):
        Image.new("L", (32, 32)).save(tmp_path / "imgs" / f"{number}.png")
    lines = [f"imgs {number}.png {number} {number % 2}\n" for number in range(20)]
    (tmp_path / "metadata" / "0.npy").write_text("".join(lines), encoding="ascii")
    arena.check_runs(tmp_path, "pathfinder", [configure_arena("pathfinder", "inline", tmp_path, data=str(tmp_path))])
    assert capsys.readouterr().out == ""


def test_a_folder_has_the_table_of_one_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text('{"task": "pathfinder", "rows": []}', encoding="utf-8")
    assert main(["lra", "listops", "--out", str(tmp_path), "--attention", "none"]) == 2
    assert "is the table of pathfinder; give another folder" in capsys.readouterr().err


def test_runs_that_end_together_are_all_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one process writes the table, another puts down its row and the table that it knows."""
    for name in ("linear", "softmax"):
        (tmp_path / name).mkdir()
    whole = arena.write_json

    def meanwhile(path: Path, value: object) -> None:
        if path.name == arena.RESULTS:
            monkeypatch.setattr(arena, "write_json", whole)
            arena.keep_row(tmp_path, "listops", {"attention": "softmax"})
        whole(path, value)

    monkeypatch.setattr(arena, "write_json", meanwhile)
    arena.keep_row(tmp_path, "listops", {"attention": "linear"})
    table = json.loads((tmp_path / arena.RESULTS).read_text(encoding="utf-8"))
    assert table == {"task": "listops", "rows": [{"attention": "softmax"}, {"attention": "linear"}]}


STEPS = {"listops": 5000, "text": 20_000, "retrieval": 30_000, "image": 35_000, "pathfinder": 62_400}
WARMUP = {"listops": 1000, "text": 8000, "retrieval": 800, "image": 175, "pathfinder": 312}


@pytest.mark.parametrize("task", SEQUENCE_TASKS)
def test_recipes_are_the_published_ones(task: str) -> None:
    config = resolve(load_recipe(f"lra_{task}"))
    values = to_dict(config)
    assert config.task == "sequences"
    assert config.data.epoch_steps * config.schedule.epochs == STEPS[task]
    assert config.data.epoch_steps * config.schedule.warmup_epochs == WARMUP[task]
    assert config.batch.size == (256 if task in ("image", "pathfinder") else 32)
    assert (values["optim"]["lr"], values["optim"]["weight_decay"], config.model.drop) == (1e-4, 0.0, 0.1)
    assert (config.data.name, config.model.name, config.data.path) == (task, f"lra_{task}", None)
    model, card = build(config.model, config.data)
    assert model.num_tokens == SEQUENCE_TASKS[task].tokens
    assert model.num_classes == len(card.classes)


def test_every_task_has_recipe_model_and_published_rows() -> None:
    assert set(SEQUENCE_MODELS) == {f"lra_{name}" for name in SEQUENCE_TASKS} <= set(recipe_names())
    assert all(set(scores) == set(SEQUENCE_TASKS) for scores in arena.PUBLISHED.values())
    assert set(arena.TITLES.values()) == set(arena.PUBLISHED)
    means = {name: round(sum(scores.values()) / 5, 1) for name, scores in arena.PUBLISHED.items()}
    assert means == {"Transformer": 58.8, "Linformer": 55.6, "Performer": 53.6, "Nystromformer": 59.0}


def test_the_rate_rises_and_falls_in_lines(cache: str, tmp_path: Path) -> None:
    from sightline.engine.optimize import make_optimizer, make_schedule

    config = configure(cache, tmp_path, schedule__epochs="10", schedule__warmup_epochs="2")
    optimizer = make_optimizer(torch.nn.Linear(2, 2), config)
    schedule, epochs = make_schedule(optimizer, config, 5)
    assert epochs == 10
    rates = []
    for step in range(50):
        schedule.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(4e-6)
    assert rates[10] == max(rates) == pytest.approx(1e-4)
    assert np.diff(rates[:10]) == pytest.approx(9.6e-6)
    assert np.diff(rates[10:]) == pytest.approx(-1e-4 / 40)


def test_weights_in_a_run_know_their_data(cache: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other sizes would generate other examples, some of which were trained on."""
    train(configure(cache, tmp_path / "run"))
    for name in ("checkpoints/last", "checkpoints/best/model.safetensors"):
        capsys.readouterr()
        assert main(["eval", "--checkpoint", str(tmp_path / "run" / name), "--device", "cpu", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["examples"] == 20
