"""The models on a GPU: published logits, and gradients as on a CPU, through the kernels; compiled as well."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import sightline  # noqa: F401

from . import weights
from .test_golden import EXACT, MODELS, PROMISED, STEP_OF_THE_BATCH

pytestmark = pytest.mark.gpu

SOFT = ["soft_tiny", "soft_norm_tiny"]
NAMES = ["inline_deit_tiny", "inline_pvt_tiny", "inline_swin_tiny", "inline_cswin_tiny", *SOFT]
HALF = 3e-2  # of logits in bfloat16, which rounds to 8 bits after every layer


@pytest.fixture(autouse=True)
def _full_float32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _published(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with published weights, images, and the logits that it should give."""
    golden = weights.Golden.read(name)
    model_name, arguments = MODELS.get(name, (name, {}))
    model = timm.create_model(model_name, **arguments).eval()
    model.load_state_dict(golden.state)
    return model.cuda(), golden.images.cuda(), golden.logits.cuda()


def _error(got: Tensor, want: Tensor) -> float:
    return ((got.float() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("name", weights.names())
def test_published_logits(name: str) -> None:
    model, images, logits = _published(name)
    with torch.inference_mode():
        assert _error(model(images), logits) < (PROMISED if name in STEP_OF_THE_BATCH else EXACT)


@pytest.mark.parametrize("name", SOFT)
def test_published_logits_in_bfloat16(name: str) -> None:
    model, images, _ = _published(name)
    with torch.inference_mode():
        want = model(images)
        with torch.autocast("cuda", torch.bfloat16):
            assert _error(model(images), want) < HALF
        assert _error(model.bfloat16()(images.bfloat16()), want) < HALF


@pytest.mark.parametrize("name", NAMES)
def test_gradients_as_on_a_cpu(name: str) -> None:
    model = weights.enliven(timm.create_model(name, num_classes=5, img_size=64)).eval()
    images = torch.randn(2, 3, 64, 64)
    gradients = {}
    for device in ("cpu", "cuda"):
        model = model.to(device)
        model.zero_grad()
        model(images.to(device)).square().sum().backward()
        gradients[device] = {n: p.grad.cpu().double() for n, p in model.named_parameters() if p.grad is not None}
    assert gradients["cpu"].keys() == gradients["cuda"].keys()
    for parameter, want in gradients["cpu"].items():
        error = (gradients["cuda"][parameter] - want).norm() / want.norm().clamp(min=1e-6)
        assert error < 1e-3, f"{parameter}: {error:.1e}"


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_autocast_trains(name: str) -> None:
    model = timm.create_model(name, num_classes=5, img_size=64).cuda()
    images, labels = torch.randn(8, 3, 64, 64, device="cuda"), torch.arange(8, device="cuda") % 5
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(12):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("name", "options", "dtype"),
    [
        ("inline_deit_tiny", {"depths": 2}, torch.float32),
        ("inline_deit_tiny", {"depths": 2, "attention": "inline(agents=9,softmax_prefix=true)"}, torch.float32),
        ("inline_deit_tiny", {"depths": 2, "attention": "inline(agents=9,softmax_prefix=true)"}, torch.bfloat16),
        (
            "inline_deit_tiny",
            {"depths": 2, "attention": "inline(agents=9,softmax_prefix=true,window=3)"},
            torch.bfloat16,
        ),
        ("soft_tiny", {"depths": (1, 1, 1, 1)}, torch.float32),
    ],
)
def test_compiled_without_graph_breaks(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    model = timm.create_model(name, num_classes=5, img_size=64, **options).to("cuda", dtype).eval()
    images = torch.randn(2, 3, 64, 64, device="cuda", dtype=dtype)
    with torch.no_grad():
        want, got = model(images), torch.compile(model, fullgraph=True)(images)
    tolerance = 1e-3 if dtype == torch.float32 else HALF
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def _step(model: nn.Module, images: Tensor) -> Callable[[], list[Tensor]]:
    """Forward and backward of a training step under autocast: the logits, and every gradient."""

    def call() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            logits = model(images)
        return [logits.detach(), *torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))]

    return call


@pytest.mark.parametrize("name", SOFT)
def test_training_step_has_the_same_bits_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = timm.create_model(name, num_classes=5, img_size=224).cuda().train()
    step = _step(model, torch.randn(4, 3, 224, 224, device="cuda"))
    assert all(torch.equal(first, second) for first, second in zip(step(), step(), strict=True))


@pytest.mark.parametrize("name", SOFT)
def test_cuda_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured, inference and a training step, gives on other images what plain calls give."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = timm.create_model(name, num_classes=5, img_size=64).cuda().eval()
    images = torch.randn(4, 3, 64, 64, device="cuda")
    step = _step(model, images)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            captured = step()
        images.copy_(torch.randn_like(images))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))


@pytest.mark.parametrize("name", ["inline_deit_tiny", "soft_tiny"])
def test_training_with_reduce_overhead(name: str) -> None:
    """torch.compile with CUDA graphs trains: the first losses are those of the plain model."""
    depths = 2 if name == "inline_deit_tiny" else (1, 1, 1, 1)
    images, labels = torch.randn(8, 3, 64, 64, device="cuda"), torch.arange(8, device="cuda") % 5
    losses = {}
    for mode in (None, "reduce-overhead"):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=5, img_size=64, depths=depths, drop_path_rate=0.0).cuda()
        run = model if mode is None else torch.compile(model, mode=mode)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        losses[mode] = []
        for _ in range(8):
            loss = torch.nn.functional.cross_entropy(run(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[mode].append(loss.item())
    assert losses["reduce-overhead"][-1] < losses["reduce-overhead"][0]
    torch.testing.assert_close(losses["reduce-overhead"][:3], losses[None][:3], rtol=1e-2, atol=1e-2)


def compare_training(compiled: Callable[[Tensor], Tensor], model: nn.Module, images: Tensor) -> None:
    """The gradients of a compiled model are those of the model."""
    grads = []
    for run in (compiled, model):
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(images).float().square().mean()
        grads.append(torch.autograd.grad(loss, [*model.parameters()]))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2 * want.abs().max().item())


@pytest.mark.parametrize("attention", ["inline", "none"])
def test_compiled_training_of_two_sizes_in_one_process(attention: str) -> None:
    for batch, size in ((8, 64), (2, 128)):
        torch.manual_seed(0)
        arguments = {"num_classes": 5, "img_size": size, "depths": 2, "attention": attention}
        model = timm.create_model("inline_deit_tiny", **arguments).cuda()
        compare_training(torch.compile(model), model, torch.randn(batch, 3, size, size, device="cuda"))


@pytest.mark.parametrize(("name", "depths"), [("inline_deit_tiny", 1), ("inline_pvt_tiny", (1, 1, 1, 1))])
def test_compiled_training_of_changing_batches_and_sizes(name: str, depths: int | tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, img_size=96, depths=depths).cuda()
    compiled = torch.compile(model)
    for batch, height, width in ((8, 64, 64), (6, 128, 160), (5, 160, 128), (6, 96, 96), (6, 192, 64)):
        compare_training(compiled, model, torch.randn(batch, 3, height, width, device="cuda"))


@pytest.mark.parametrize("name", ["inline_deit_tiny", "soft_tiny"])
def test_float16_overflow_is_skipped(name: str) -> None:
    model = timm.create_model(name, num_classes=5, img_size=64).cuda()
    images, labels = torch.randn(8, 3, 64, 64, device="cuda"), torch.arange(8, device="cuda") % 5
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    for _ in range(40):
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert loss.isfinite()
    assert scaler.get_scale() < 2.0**40
    assert all(p.isfinite().all() for p in model.parameters())
