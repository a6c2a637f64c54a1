"""How the model of a run is compiled, and the fallback to eager mode from the same state if that fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from sightline.data.order import Placement
from sightline.engine.compiling import Choice, CompiledModel, choose
from sightline.engine.optimize import Average, make_optimizer
from sightline.engine.settings import configure, load_recipe
from sightline.engine.signals import Stopped
from sightline.engine.trainer import Trainer
from sightline.tasks.classification.loaders import DeviceLoader
from sightline.tasks.classification.task import Classification
from sightline.tasks.config import Model
from sightline.tasks.detection.spec import Detection
from sightline.tasks.registry import TASKS
from sightline.tasks.segmentation.spec import Segmentation
from sightline.util.errors import InputError
from tests.engine.tiny import RECIPE, make_images, metrics, train, weights

ONE = {**RECIPE["model"]["args"], "depths": 1}
CONVOLUTIONS = {"model.name": "test_resnet", "model.args": {}, "data.size": 32, "model.drop_path": 0.0}  # batch norm
FAILED = "compiling failed"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def run(images: Path, tmp_path: Path) -> Callable[..., Path]:
    """Train the tiny model with one block, by name of the run and with changes."""

    def run(name: str, **changes: Any) -> Path:
        usual = {"data.path": str(images), "run.folder": str(tmp_path / name), "model.args": ONE, "schedule.epochs": 1}
        return train(configure(RECIPE, {**usual, "schedule.warmup_epochs": 0, **changes}))

    return run


@pytest.mark.parametrize(
    ("asked", "mode", "device", "options", "result"),
    [
        (False, None, "cuda", {}, None),
        (False, "default", "cuda", {}, None),
        ("auto", None, "cpu", {}, None),
        ("auto", "max-autotune", "cpu", {}, None),
        ("auto", None, "mps", {}, None),
        ("auto", None, "cuda", {"sharded": True, "processes": 2}, None),
        ("auto", None, "cuda", {}, "reduce-overhead"),
        ("auto", None, "cuda", {"shapes": "lengths"}, "default"),
        ("auto", None, "cuda", {"shapes": "any"}, None),
        ("auto", None, "cuda", {"processes": 2}, "default"),
        ("auto", "max-autotune", "cuda", {"shapes": "lengths"}, "max-autotune"),
        ("blocks", None, "cpu", {}, None),
        ("blocks", None, "cuda", {}, "default"),
        ("blocks", "reduce-overhead", "cuda", {"processes": 2}, "default"),
        ("blocks", None, "cuda", {"shapes": "any"}, None),
        ("graphs", None, "cpu", {}, None),
        ("graphs", None, "cuda", {}, None),
        ("blocks", None, "cuda", {"recordable": False}, "default"),
        ("graphs", None, "cuda", {"recordable": False}, None),
        ("graphs", None, "cuda", {"processes": 2}, "default"),
        ("graphs", None, "cuda", {"shapes": "lengths"}, "default"),
        (True, None, "cuda", {}, "reduce-overhead"),
        (True, None, "cuda", {"shapes": "any"}, "default"),
        (True, None, "cuda", {"sharded": True, "processes": 2}, "default"),
        (True, None, "cuda", {"processes": 2}, "default"),
        (True, None, "cpu", {}, "default"),
        (True, "reduce-overhead", "cpu", {}, "reduce-overhead"),
    ],
)
def test_what_is_chosen(asked: Any, mode: Any, device: str, options: dict[str, Any], result: str | None) -> None:
    choice = choose(Model(compile=asked, compile_mode=mode), device, **options)
    assert choice.mode == result
    assert choice.blocks == (asked == "blocks" and result is not None)
    assert choice.graphs == (result in ("reduce-overhead", "max-autotune"))
    assert "\n" not in choice.line
    assert choice.recorded == (asked in ("blocks", "graphs") and device == "cuda" and not options)
    assert ("model.compile=false" in choice.line) == (result is not None or choice.recorded)


def test_auto_is_the_default() -> None:
    assert configure({}).model.compile == "auto"
    assert configure(load_recipe("imagenette_deit")).model.compile == "auto"
    assert configure({"model": {"compile": True}}).model.compile is True
    expected = r"model\.compile: expected 'auto', 'blocks', 'graphs', True or False; got 'maybe'"
    with pytest.raises(InputError, match=expected):
        configure({"model": {"compile": "maybe"}})


def test_shapes_of_tasks(tmp_path: Path) -> None:
    assert (Classification.shapes, Segmentation.shapes, Detection.shapes) == ("fixed", "fixed", "any")
    for name, shapes in (("listops", "lengths"), ("pathfinder", "fixed")):
        data = {"name": name, "train": 4, "val": 2, "test": 2, "cache": str(tmp_path)}
        config = configure({"task": "sequences", "data": data, "model": {"name": f"lra_{name}"}, "batch": {"size": 2}})
        task = TASKS["sequences"].make(config, Placement(torch.device("cpu"), 2))
        assert task.shapes == shapes
        assert task.compiled is task.model


@pytest.mark.slow
def test_a_compiled_run_is_the_same_run_and_resumes(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Traced and called as graphs, with gradients in two parts; stopped within the epoch, and resumed."""
    modes, compile = [], nn.Module.compile

    def eager(self: nn.Module, **options: Any) -> None:
        modes.append(options)
        compile(self, backend="eager", dynamic=options["dynamic"])

    monkeypatch.setattr(nn.Module, "compile", eager)
    parts = {"batch.accumulate": 2, "run.save_steps": 1}
    plain = run("plain", **parts)
    assert not modes
    compiled = run("compiled", **parts, **{"model.compile": True})
    assert modes == [{"mode": "default", "dynamic": False}]
    written = capsys.readouterr().out
    assert written.count("model.compile=false") == 1
    assert FAILED not in written
    assert weights(compiled) == weights(plain)
    assert metrics(compiled) == metrics(plain)

    update = Trainer._update

    def stopping(self: Trainer, *arguments: Any) -> Any:
        done = update(self, *arguments)
        if self.progress.step == 2:
            self.signals.received = "SIGTERM"
            self._stop()
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", stopping)
        with pytest.raises(Stopped):
            run("stopped", **parts, **{"model.compile": True})
    assert weights(run("stopped", **parts, **{"model.compile": True})) == weights(plain)


def no_compiler(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
    raise NotImplementedError("no kernels\nfor this machine")


class Broken(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("the gradient cannot be computed")


def compiling(where: str) -> Callable[..., None]:
    """Compiles modules to code that fails."""
    compile = nn.Module.compile

    def failing(self: nn.Module, **options: Any) -> None:
        calls = 0

        def call(*inputs: Any) -> Any:
            nonlocal calls
            calls += 1
            out = self._call_impl(*inputs)
            if calls == 4 and where == "forward":
                raise RuntimeError("the fourth pass fails")
            return Broken.apply(out) if calls == 4 else out

        if where == "build":
            raise RuntimeError("torch.compile is not supported here")
        if where == "compiler":
            compile(self, backend=no_compiler)
        else:
            self._compiled_call_impl = call

    return failing


@pytest.mark.parametrize("where", ["build", "compiler", "forward", "backward"])
def test_after_a_failure_a_run_continues_in_eager_mode_from_the_same_state(
    where: str, run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With batch norm, whose statistics the failed pass has changed, and the second of two micro-batches."""
    model = {} if where == "compiler" else CONVOLUTIONS
    parts = {"batch.accumulate": 2, **model}
    plain = run("plain", **parts)
    capsys.readouterr()
    monkeypatch.setattr(nn.Module, "compile", compiling(where))
    failed = run("failed", **parts, **{"model.compile": True})
    lines = [line for line in capsys.readouterr().out.splitlines() if FAILED in line]
    assert len(lines) == 1
    assert "model.compile=false" in lines[0]
    assert "eager" in lines[0]
    assert weights(failed) == weights(plain)
    assert metrics(failed) == metrics(plain)


def test_after_a_failure_autocast_sees_the_weights_of_every_update(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that fails may leave a context of autocast twice, or never; its cast weights would be kept."""
    monkeypatch.setattr("sightline.util.device._cpu_has_bfloat16", lambda: True)
    precision = {"run.precision": "bf16"}
    plain = run("plain", **precision)

    for change in (torch.autocast_increment_nesting, torch.autocast_decrement_nesting):

        def failing(self: nn.Module, change: Callable[[], int] = change, **_: Any) -> None:
            def call(*inputs: Any) -> Any:
                change()
                raise AssertionError("multiple exits?")

            self._compiled_call_impl = call

        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "compile", failing)
            failed = run(change.__name__, **precision, **{"model.compile": True})
        assert weights(failed) == weights(plain)
        assert metrics(failed) == metrics(plain)


def test_a_model_is_compiled_with_the_autocast_of_accelerate(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accelerate wraps `forward`. What is traced may not call it again, as it would enter the same context twice."""
    compile = nn.Module.compile
    monkeypatch.setattr("sightline.util.device._cpu_has_bfloat16", lambda: True)
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compile(self, backend="aot_eager", fullgraph=True))
    losses = [
        [row["train_loss"] for row in metrics(run(str(choice), **{"run.precision": "bf16", "model.compile": choice}))]
        for choice in (False, True)
    ]
    assert FAILED not in capsys.readouterr().out
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_evaluation_is_eager(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    called, compile = [], nn.Module.compile

    def noting(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        def call(*inputs: Tensor) -> Any:
            called.append(torch.is_grad_enabled())
            return module(*inputs)

        return call

    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile(self, backend=noting))
    out = run("run", **{"model.compile": True, "ema.decay": 0.0})
    assert called == [True] * 4
    assert "top1" in metrics(out)[-1]


def test_graphs_do_not_keep_gradients(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replay of a CUDA graph overwrites the gradients that the last one returned."""
    plain = run("plain", **{"batch.accumulate": 4})
    monkeypatch.setattr(CompiledModel, "graphs", True)
    kept: list[Tensor] = []
    mark = torch.compiler.cudagraph_mark_step_begin

    def replay() -> None:
        mark()
        for grad in kept:
            grad.fill_(float("nan"))
        kept.clear()

    def keep(self: Any, loss: Tensor) -> None:
        loss.backward()
        if not kept and not self._seen:
            kept.extend(p.grad for p in self._models[0].parameters() if p.grad is not None)
        self._seen = (self._seen + 1) % 4

    monkeypatch.setattr("accelerate.Accelerator._seen", 0, raising=False)
    monkeypatch.setattr("accelerate.Accelerator.backward", keep)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", replay)
    assert weights(run("graphs", **{"batch.accumulate": 4})) == weights(plain)


def test_augmentation_that_cannot_be_compiled_is_eager(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Tensor:
        raise RuntimeError("no kernels")

    make = DeviceLoader.__init__

    def compiled(self: DeviceLoader, *arguments: Any) -> None:
        make(self, *arguments)
        self.compiled = broken

    preload = {"data.preload": True, "augment": {"scale": [0.5, 1.0]}}
    plain = run("plain", **preload)
    monkeypatch.setattr(DeviceLoader, "__init__", compiled)
    capsys.readouterr()
    assert weights(run("broken", **preload)) == weights(plain)
    assert capsys.readouterr().out.count(FAILED) == 1


def test_an_average_is_that_of_timm() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ours, theirs = (kind(model, decay=0.9, use_warmup=True) for kind in (Average, ModelEmaV3))
    for step in range(1, 4):
        with torch.no_grad():
            model(torch.randn(5, 3))
            model[0].weight.mul_(1.5)
        for average in (ours, theirs):
            average.update(model, step)
    assert ours.module[1].num_batches_tracked == 3
    for key, value in theirs.module.state_dict().items():
        assert torch.equal(ours.module.state_dict()[key], value)


@pytest.mark.parametrize(
    ("optim", "fused"),
    [({}, True), ({"name": "sgd"}, True), ({"name": "lamb"}, None), ({"args": {"foreach": True}}, None)],
)
def test_optimizers_are_fused_where_torch_can(optim: dict[str, Any], fused: bool | None) -> None:
    made = make_optimizer(nn.Linear(2, 2), configure({"optim": optim}))
    assert made.param_groups[0].get("fused") is fused


def test_a_choice_of_eager_mode_compiles_nothing() -> None:
    model = nn.Linear(2, 2)
    compiled = CompiledModel(model, [model], Choice(None, "as requested"), "fixed", pytest.fail)
    assert not compiled.active
    assert compiled.attempt(lambda: 3) == 3
    with compiled.eager(), pytest.raises(ZeroDivisionError):
        compiled.attempt(lambda: 1 / 0)


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
def test_cuda_graphs_train_and_resume(
    accumulate: int, run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Averaged weights, clipping and mixed precision; ended within an epoch and resumed, it has the same losses."""
    whole = {"run.device": "cuda", "run.precision": "bf16", "optim.clip": 1.0, "batch.accumulate": accumulate}
    whole |= {"schedule.epochs": 2, "run.deterministic": False}
    eager = run("eager", **whole, **{"model.compile": False})
    capsys.readouterr()
    graphs = run("graphs", **whole)
    assert "with CUDA graphs" in (written := capsys.readouterr().out)
    assert FAILED not in written
    parts = run("parts", **whole, **{"run.max_steps": 5, "run.save_steps": 5})
    (parts / "done.json").unlink()
    run("parts", **whole)
    for one, two, three in zip(*map(metrics, (eager, graphs, parts)), strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=0.05)
        assert three["train_loss"] == pytest.approx(two["train_loss"], rel=1e-4)
