"""`SIGHTLINE_BACKEND=torch` turns off every kernel and fast path; GPUs that are too small take the reference."""

from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch

import sightline  # noqa: F401
from sightline import backend
from sightline.layers.blocks import TanhMlp
from sightline.layers.patch import ConvBNEmbed, PatchEmbed
from sightline.layers.stripe_attention import StripeAttention
from sightline.ops import headwise_conv, inline_attention, linear_attention, soft_attention

device_limits = backend.device_limits  # the fixture below replaces it
H200, RTX_4090, T4 = (9, 0, 232448), (8, 9, 101376), (7, 5, 65536)


def on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Looks like a tensor on a GPU, as far as a decision is concerned."""
    meta = torch.empty(shape, dtype=dtype, device="meta")
    device = torch.device("cuda", 0)
    known = {"shape": meta.shape, "numel": meta.numel, "stride": meta.stride, "ndim": meta.ndim}
    return SimpleNamespace(is_cuda=True, device=device, dtype=dtype, requires_grad=True, **known)


# Arguments for which each path is taken by default.
TAKEN: dict[str, Any] = {
    "inline_layer": lambda: (on_gpu(2, 196, 192), 32),
    "whole_layer": lambda: (on_gpu(2, 196, 192), on_gpu(576, 192), 32, 1),
    "whole_block": lambda: (on_gpu(2, 196, 192),),
    "fused_readers": lambda: (on_gpu(2, 197, 3, 64), 50),
    "unprojected_tokens": lambda: (torch.zeros(1, 64, 32),),
    "activated_linear": lambda: (on_gpu(2, 196, 192), on_gpu(768, 192), on_gpu(768)),
    "fused_norm": lambda: (on_gpu(2, 197, 192),),
    "lookup_product": lambda: (on_gpu(257, 64, dtype=torch.float32), on_gpu(2, 1024, dtype=torch.int64)),
    "joined_stripes": lambda: ((14, 14),),
    "patch_product": lambda: (on_gpu(2, 3, 224, 224),),
    "patch_kernel": lambda: (on_gpu(2, 64, 56, 56),),
    "fused_stem": lambda: (on_gpu(2, 3, 224, 224),),
    "tall_products": lambda: (torch.zeros(2, 64, 8, requires_grad=True), torch.zeros(2, 8, 8)),
    "shifted_products": lambda: (1,),
}


@pytest.fixture(autouse=True)
def _h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    _device(H200, monkeypatch)


def test_every_fast_path_is_known() -> None:
    assert set(backend.FAST_PATHS) == set(TAKEN)
    assert len(backend.FAST_PATHS) == 14
    assert len(backend.TRITON_OPERATORS) == 4


@pytest.mark.parametrize("name", TAKEN)
def test_variable_turns_a_fast_path_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: name in ("fused_norm", "lookup_product"))
    decision = backend.FAST_PATHS[name]
    inference = ("activated_linear", "fused_readers", "patch_kernel", "whole_block", "whole_layer")
    grad = torch.no_grad() if name in inference else torch.enable_grad()
    with grad:
        assert decision(*TAKEN[name]())
        monkeypatch.setenv(backend.VARIABLE, "torch")
        assert not decision(*TAKEN[name]())


def test_no_fast_path_runs_in_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the functions behind the paths is called, in a forward and a backward pass."""
    called: list[str] = []

    def record(target: str) -> None:
        monkeypatch.setattr(target, lambda *args, **kwargs: called.append(target))

    record("sightline.layers.mechanisms.inline.inline_from_tokens")
    record("sightline.layers.mechanisms.inline.inline_from_packed")
    record("sightline.layers.mechanisms.inline.inline_from_parts")
    record("sightline.layers.mechanisms.inline.inline_projected")
    record("sightline.ops.inline.product._Matmul.apply")
    record("sightline.ops.inline.product._Moment.apply")
    monkeypatch.setattr(StripeAttention, "_joined", lambda *args: called.append("stripes"))
    monkeypatch.setattr(PatchEmbed, "_product", lambda *args: called.append("patch"))
    monkeypatch.setattr(ConvBNEmbed, "_by_layers", lambda *args: called.append("stem"))
    monkeypatch.setattr(ConvBNEmbed, "_folded", lambda *args: called.append("folded stem"))
    monkeypatch.setenv(backend.VARIABLE, "torch")
    for name in ("inline_deit_tiny", "soft_tiny", "inline_cswin_tiny"):
        depths = 1 if name == "inline_deit_tiny" else (1, 1, 1, 1)
        model = timm.create_model(name, img_size=64, num_classes=3, depths=depths)
        model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert called == []


@pytest.mark.gpu
def test_no_kernel_runs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "torch")
    monkeypatch.setattr("sightline.ops.common.operator.replay", None)  # a launch would fail
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.inference_mode():
        for name in ("inline_deit_tiny", "soft_tiny"):
            depths = 1 if name == "inline_deit_tiny" else (1, 1, 1, 1)
            model = timm.create_model(name, img_size=64, num_classes=3, depths=depths).cuda().bfloat16().eval()
            model(torch.randn(2, 3, 64, 64, device="cuda", dtype=torch.bfloat16))
        mlp = TanhMlp(32, 64, act_layer=torch.nn.GELU).cuda().bfloat16().eval()
        mlp(torch.randn(2, 8, 32, device="cuda", dtype=torch.bfloat16))
    assert [event.key for event in profile.key_averages() if event.key.startswith("sightline::")] == []


def _device(limits: tuple[int, int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "device_limits", lambda index: limits)
    monkeypatch.setattr(backend, "_widest", {})


@pytest.mark.parametrize("operator", sorted(backend.TRITON_OPERATORS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [8, 24, 32, 64, 80, 128])
def test_kernels_run_on_an_h200(operator: str, dtype: torch.dtype, head_dim: int) -> None:
    q = on_gpu(2, 196, 2, head_dim, dtype=dtype)
    too_wide = operator == "linear_attention" and dtype == torch.float32 and head_dim > 64
    assert (backend.obstacle(operator, q, q, q) is not None) == too_wide  # 393,216 bytes of shared memory in backward


@pytest.mark.parametrize("operator", sorted(backend.TRITON_OPERATORS))
@pytest.mark.parametrize(("limits", "values"), [(T4, ("7.5", "8.0")), ((8, 0, 1024), ("1,024",)), (None, ("NVIDIA",))])
def test_too_small_a_gpu_takes_the_reference(
    operator: str, limits: tuple[int, int, int] | None, values: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _device(limits, monkeypatch)
    q = on_gpu(2, 196, 2, 32)
    reason = backend.obstacle(operator, q, q, q)
    assert reason is not None
    assert all(value in reason for value in values)
    assert backend.choose(operator, q.device, None, reason) == "torch"
    with pytest.raises(ValueError, match=rf"{operator}: backend='triton'.*{values[0]}"):
        backend.choose(operator, q.device, "triton", reason)


@pytest.mark.parametrize("limits", [T4, (8, 0, 1024), None])
def test_too_small_a_gpu_takes_no_fast_path_with_kernels(
    limits: tuple[int, int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _device(limits, monkeypatch)
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    assert not backend.inline_layer(*TAKEN["inline_layer"]())
    assert not backend.fused_norm(*TAKEN["fused_norm"]())
    assert backend.lookup_product(*TAKEN["lookup_product"]()) == (limits == (8, 0, 1024))  # by torch's own kernels


def test_norms_are_fused_in_compiled_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in eager mode or inference, without tokens, for more channels than the kernel takes, or in float64."""
    assert not backend.fused_norm(on_gpu(2, 197, 192))
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    for dtype in backend.DTYPES:
        assert backend.fused_norm(on_gpu(2, 197, 2048, dtype=dtype))
    assert not backend.fused_norm(on_gpu(2, 197, 2049))
    assert not backend.fused_norm(on_gpu(0, 197, 192))
    assert not backend.fused_norm(on_gpu(2, 197, 192, dtype=torch.float64))
    with torch.no_grad():
        assert not backend.fused_norm(on_gpu(2, 197, 192))
    monkeypatch.setattr(backend, "transformed", lambda: True)
    assert not backend.fused_norm(on_gpu(2, 197, 192))


def test_gradients_of_small_tables_are_products_in_compiled_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in eager mode or inference, on a CPU, without tokens, for more rows, a frozen table, or in float64."""
    table, tokens = TAKEN["lookup_product"]()
    assert not backend.lookup_product(table, tokens)
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    for dtype in backend.DTYPES:
        assert backend.lookup_product(on_gpu(backend.TABLE_ROWS, 64, dtype=dtype), tokens)
    assert not backend.lookup_product(on_gpu(backend.TABLE_ROWS + 1, 64), tokens)
    assert not backend.lookup_product(on_gpu(257, 64, dtype=torch.float64), tokens)
    assert not backend.lookup_product(table, on_gpu(0, 1024))
    assert not backend.lookup_product(torch.zeros(257, 64, requires_grad=True), tokens)
    with torch.no_grad():
        assert not backend.lookup_product(table, tokens)
    table.requires_grad = False
    assert not backend.lookup_product(table, tokens)
    table.requires_grad = True
    monkeypatch.setattr(backend, "transformed", lambda: True)
    assert not backend.lookup_product(table, tokens)


def test_wide_heads_in_float32_need_more_shared_memory_than_a_gaming_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    _device(RTX_4090, monkeypatch)
    for narrow in (on_gpu(2, 196, 2, 128), on_gpu(2, 196, 2, 64, dtype=torch.float32)):
        assert backend.obstacle("inline_attention", narrow, narrow, narrow) is None
    wide = on_gpu(2, 196, 2, 128, dtype=torch.float32)
    reason = backend.obstacle("inline_attention", wide, wide, wide)
    assert reason is not None
    assert f"{RTX_4090[2]:,}" in reason
    assert f"{backend.MEDIUM:,}" in reason


def test_tiles_follow_shared_memory_and_are_smaller_with_tensor_memory() -> None:
    found = {gpu: backend.tile_memory((*gpu, shared)) for gpu, shared in backend.SHARED_MEMORY.items()}
    smaller = {gpu for gpu, shared in backend.SHARED_MEMORY.items() if found[gpu] < shared}
    assert smaller == {(10, 0), (10, 3), (11, 0)}


@pytest.mark.parametrize("known", [True, False])
def test_older_torch_knows_shared_memory_by_compute_capability(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(major=8, minor=9, **({"shared_memory_per_block_optin": 1234} if known else {}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(backend, "_limits", {})
    assert device_limits(0) == (8, 9, 1234 if known else backend.SMALL)


@pytest.mark.parametrize("operator", [inline_attention, linear_attention, soft_attention, headwise_conv])
def test_variable_turns_kernels_off(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the interpreter, `triton` would run the kernels on the CPU; `torch` runs the reference."""
    q = torch.randn(1, 12, 2, 16)
    arguments: dict[str, Any] = {"q": q, "k": q, "v": q}
    if operator is soft_attention:
        arguments = {"q": q, "v": q, "landmarks": q[:, :3], "normalized": True, "iterations": 2}
    elif operator is headwise_conv:
        arguments = {"x": q, "weight": torch.randn(2, 1, 3, 3), "grid": (3, 4)}
    monkeypatch.setenv(backend.VARIABLE, "torch")
    monkeypatch.setattr("sightline.ops.common.operator.replay", None)  # a launch would fail
    assert operator(**arguments).shape == q.shape
