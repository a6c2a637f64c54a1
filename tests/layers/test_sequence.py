"""Every mechanism on a sequence of tokens: weights of one dimension, and padding that changes nothing."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from sightline.layers import MECHANISMS, Attention, Core, Place, Spec
from sightline.layers.mechanisms.landmarks import Landmarks, nowhere
from sightline.layers.mechanisms.soft import SoftCore
from sightline.ops import inline_attention, linear_attention, soft_attention, softmax_attention
from sightline.ops.inline.reference import local_residual
from sightline.ops.soft.reference import gaussian

from ..models.tiny import assert_close, relative_error

DIM, HEADS, LENGTH = 12, 3, 40
TEXTS = (
    *MECHANISMS,
    "inline(phi=relu)",
    "inline(residual=false)",
    "soft(ratio=4)",
    "soft_norm(ratio=4,landmarks=5)",
    "soft_norm(ratio=4,landmark=pool)",
    "soft_norm(ratio=4,landmark=first)",
    "soft(ratio=4,landmarks=5,landmark=random)",
    "nystromformer(landmarks=4,kernel=5)",
    "linformer(rank=6,share=true)",
    "enhanced(scales=2,kernel=3)",
    "focused(kernel=0)",
    "rala(gate=true,kernel=3)",
    "ttt(project=true,key_norm=true,kernel=3)",
    "inline(key_norm=true,temperature=true,head_map=true)",
    "inline(softmax_prefix=true)",
    "inline(agents=3)",
    "inline(agents=3,window=4)",
    "linear(phi=elu1,key_norm=true,temperature=true,head_map=true)",
)


def layer(text: str) -> Attention:
    """An attention layer for sequences with weights that matter."""
    torch.manual_seed(0)
    made = Attention(DIM, HEADS, Spec.parse(text), length=LENGTH)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made.double()


def tokens(length: int, batch: int = 1) -> Tensor:
    torch.manual_seed(length)
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def padded(rows: list[Tensor], length: int, garbage: float, prefix: int) -> tuple[Tensor, Tensor]:
    """Rows (1, prefix + n, C) behind each other's back, filled up with garbage, and their mask."""
    x = torch.full((len(rows), prefix + length, DIM), garbage, dtype=torch.float64)
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    for i, row in enumerate(rows):
        x[i, : row.shape[1]], mask[i, : row.shape[1]] = row[0], True
    return x, mask


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [0.0, -300.0, float("nan")])
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("text", TEXTS)
def test_padding_changes_nothing(text: str, prefix: int, garbage: float) -> None:
    made = layer(text)
    sizes = (1, 7, 16, 29)
    rows = [tokens(prefix + size) for size in sizes]
    x, mask = padded(rows, 33, garbage, prefix)
    out = made(x, (1, 33), prefix, key_mask=mask)
    for i, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        assert_close(out[i, : prefix + size], made(row, (1, size), prefix)[0], 1e-9)


@pytest.mark.parametrize("text", TEXTS)
def test_gradients_do_not_see_padding(text: str) -> None:
    made, row = layer(text), tokens(11).requires_grad_()
    parameters = [p for name, p in made.named_parameters()]

    def gradients(x: Tensor, mask: Tensor | None) -> list[Tensor]:
        out = made(x, (1, x.shape[1]), key_mask=mask)[:, :11]
        found = torch.autograd.grad(out.square().sum(), [row, *parameters], allow_unused=True)
        return [torch.zeros(1) if g is None else g for g in found]

    junk = torch.full((1, 9, DIM), 20.0, dtype=torch.float64)
    mask = torch.arange(20)[None] < 11
    for one, other in zip(gradients(row, None), gradients(torch.cat([row, junk], 1), mask), strict=True):
        assert_close(other, one, 1e-8)


@pytest.mark.parametrize("text", TEXTS)
def test_without_any_token_the_output_is_finite(text: str) -> None:
    made = layer(text)
    out = made(tokens(5), (1, 5), key_mask=torch.zeros(1, 5, dtype=torch.bool))
    assert out.isfinite().all()


@pytest.mark.parametrize("text", TEXTS)
def test_rows_are_what_forward_applies(text: str) -> None:
    core = layer(text).core
    q, k, v = tokens(3 * 18).view(3, 1, 18, HEADS, 4).unbind(0)
    k = q if core.shared_qk else k
    mask = torch.arange(18)[None] < 15
    place = Place((1, 18), tokens(18), key_mask=mask)
    queries = torch.tensor([0, 3, 14])
    assert_close(core.by_rows(q, k, v, queries, place), core(q, k, v, place)[:, queries], 1e-8)


def test_every_mechanism_of_maps_with_squares_has_one_for_sequences() -> None:
    for name in MECHANISMS:
        core = Spec.parse(name).build(DIM, HEADS, 1, LENGTH)
        assert isinstance(core, Core)
        assert core.shared_qk == MECHANISMS[name].core.shared_qk
        for key, parameter in core.named_parameters():
            assert parameter.ndim < 4 or parameter.shape[-2] == 1, key


def test_residual_of_a_row_uses_the_middle_row_of_its_weights() -> None:
    v, weight = torch.randn(2, 9, 3, 4), torch.randn(2, 12, 3, 3)
    maps = v.reshape(2, 9, 12).transpose(1, 2).unsqueeze(2)  # B C 1 9
    for found, image, own in zip(local_residual(v, weight, (1, 9)), maps, weight, strict=True):
        conv = torch.nn.functional.conv2d(image[None], own[:, None], padding=1, groups=12)
        assert_close(found.reshape(9, 12), conv[0, :, 0].T)
        row = torch.nn.functional.conv1d(image[:, 0], own[:, None, 1], padding=1, groups=12)
        assert_close(found.reshape(9, 12), row.T)


def test_inline_has_three_weights_per_channel() -> None:
    made, x = layer("inline"), tokens(9, batch=2)
    assert made.core.residual.fc2.weight.shape == (3 * DIM, DIM // HEADS, 1)
    weights = made.core.residual.fc2(torch.nn.functional.gelu(made.core.residual.fc1(x.mean(1).unsqueeze(-1))))
    weights = weights.view(2, DIM, 3)
    bare = layer("inline(residual=false)")
    bare.load_state_dict({k: v for k, v in made.state_dict().items() if "residual" not in k})
    for side in (made, bare):
        side.proj = nn.Identity()
    v = torch.nn.functional.pad(bare.qkv(x)[..., 2 * DIM :], (0, 0, 1, 1))
    local = sum(weights[:, None, :, t] * v[:, t : t + 9] for t in range(3))
    assert_close(made(x, (1, 9)), bare(x, (1, 9)) + local, 1e-9)


def test_landmarks_are_strided_along_the_sequence() -> None:
    landmarks = Landmarks(4, 3, sequence=True).double()
    q = torch.randn(2, 10, HEADS, 4, dtype=torch.float64)
    found = landmarks(q, (1, 10))
    maps = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, 2)).permute(0, 2, 3, 1).flatten(0, 1)  # BH D 12
    expected = torch.nn.functional.conv1d(maps, landmarks.conv.weight, stride=3).view(2, HEADS, 4, 4)
    assert_close(found, torch.nn.functional.gelu(landmarks.norm(expected.permute(0, 3, 1, 2))), 1e-9)


@pytest.mark.parametrize("length", [1, 128, 1024, 2048, 4096])
def test_soft_has_about_128_landmarks(length: int) -> None:
    core = SoftCore(DIM, HEADS, 1, length)
    assert 64 <= -(-length // core.ratio) <= 128 or length < 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_missing_landmarks_are_nowhere(dtype: torch.dtype) -> None:
    points = nowhere(torch.empty(1, 512, 1, 32, dtype=dtype))[0, :, 0].float()
    assert_close(gaussian(points, points), torch.eye(512), 1e-6)
    assert gaussian(torch.randn(9, 32) * 3, points).max() == 0


@pytest.mark.parametrize("operator", [softmax_attention, linear_attention, inline_attention])
def test_packed_sequences_are_the_sequences(operator: object) -> None:
    sizes, ends = (5, 1, 8), torch.tensor([0, 5, 6, 14], dtype=torch.int32)
    q, k, v = torch.randn(3, 1, 14, HEADS, 4, dtype=torch.float64).unbind(0)
    residual = torch.randn(3, DIM, 3, 3, dtype=torch.float64)
    more = {"residual": residual, "grids": [(1, n) for n in sizes]} if operator is inline_attention else {}
    packed = operator(q, k, v, cu_seqlens=ends, **more)  # type: ignore[operator]
    for i, (a, b) in enumerate(pairwise(ends)):
        own = {"residual": residual[i : i + 1], "grid": (1, sizes[i])} if more else {}
        assert_close(packed[:, a:b], operator(q[:, a:b], k[:, a:b], v[:, a:b], **own), 1e-9)  # type: ignore[operator]


def test_packed_soft_is_soft() -> None:
    ends, marks = torch.tensor([0, 5, 6, 14]), torch.tensor([0, 2, 3, 6])
    q, v = torch.randn(2, 1, 14, HEADS, 4, dtype=torch.float64).unbind(0)
    points = torch.randn(1, 6, HEADS, 4, dtype=torch.float64)
    packed = soft_attention(q, v, points, normalized=True, cu_seqlens=ends, cu_landmarks=marks)
    for a, b, c, d in zip(ends[:-1], ends[1:], marks[:-1], marks[1:], strict=True):
        assert_close(packed[:, a:b], soft_attention(q[:, a:b], v[:, a:b], points[:, c:d], normalized=True), 1e-9)


def test_the_ends_of_a_window_are_reached() -> None:
    """A mechanism with a window sees its neighbours and nobody's beyond."""
    made = layer("nystromformer(landmarks=4,kernel=5)")
    values = torch.zeros(1, 11, HEADS, 4, dtype=torch.float64)
    values[0, 5] = 1
    found = made.core.neighbours(values, (1, 11))
    assert found[0].abs().sum((1, 2)).nonzero().flatten().tolist() == [3, 4, 5, 6, 7]


def test_linformer_takes_the_first_columns_and_no_more_tokens() -> None:
    made = layer("linformer(rank=6)")
    with pytest.raises(ValueError, match="41 tokens for tables of 40"):
        made(tokens(41), (1, 41))
    with pytest.raises(ValueError, match="side"):
        Spec.parse("linformer(side=7)").build(DIM, HEADS, 1, LENGTH)


@pytest.mark.parametrize("text", ["soft(ratio=-1)", "soft(landmarks=-1)", "soft(iterations=0)", "soft(landmark=mean)"])
def test_bad_options_of_soft(text: str) -> None:
    with pytest.raises(ValueError, match="soft"):
        Spec.parse(text).build(DIM, HEADS, 1, LENGTH)


def test_layers_differ() -> None:
    x = tokens(20)
    outputs = [layer(name)(x, (1, 20)) for name in MECHANISMS]
    for i, a in enumerate(outputs):
        for b in outputs[:i]:
            assert relative_error(a, b) > 1e-3
