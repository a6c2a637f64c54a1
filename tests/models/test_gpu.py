"""The models on a GPU: published logits, and gradients as on a CPU, through the kernels; compiled as well."""

import pytest
import timm
import torch

import sightline  # noqa: F401

from . import weights
from .test_golden import EXACT, MODELS, PROMISED, STEP_OF_THE_BATCH

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; the CPU has tests of its own")

INLINE = ["inline_deit_tiny", "inline_pvt_tiny", "inline_swin_tiny", "inline_cswin_tiny"]


@pytest.fixture(autouse=True)
def _full_float32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("name", weights.names())
def test_published_logits(name: str) -> None:
    golden = weights.Golden.read(name)
    model_name, arguments = MODELS.get(name, (name, {}))
    model = timm.create_model(model_name, **arguments).eval()
    model.load_state_dict(golden.state)
    with torch.inference_mode():
        logits = model.cuda()(golden.images.cuda()).cpu()
    error = (logits - golden.logits).norm() / golden.logits.norm()
    assert error < (PROMISED if name in STEP_OF_THE_BATCH else EXACT)


@pytest.mark.parametrize("name", INLINE)
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


@pytest.mark.parametrize("name", INLINE)
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


def test_compiled_without_graph_breaks() -> None:
    model = timm.create_model("inline_deit_tiny", num_classes=5, img_size=64, depths=2).cuda().eval()
    images = torch.randn(2, 3, 64, 64, device="cuda")
    with torch.no_grad():
        want, got = model(images), torch.compile(model, fullgraph=True)(images)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
