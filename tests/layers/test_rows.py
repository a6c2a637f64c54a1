"""For every mechanism, `forward` is rows of weights times the values plus the local term, and factors are the rows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sightline.layers import MECHANISMS, Core, Place, Spec
from sightline.layers.windows import Windows
from sightline.util.errors import InputError

from ..ops.brute_force import assert_close, tokens

DIM, HEADS, LENGTH = 12, 2, 24
TEXTS = (
    *MECHANISMS,
    "inline(phi=relu_affine)",
    "inline(residual=false)",
    "soft(ratio=2)",
    "soft_norm(ratio=2,landmark=pool)",
    "soft(landmarks=4,landmark=first)",
    "nystromformer(landmarks=4,kernel=3)",
    "linformer(rank=5,share=true)",
    "enhanced(scales=2,kernel=3)",
    "focused(kernel=0)",
    "mala(kernel=3)",
    "rala(gate=true,kernel=3)",
    "hedgehog(share=true,kernel=3)",
    "ttt(project=true,key_norm=true,kernel=3)",
    "inline(key_norm=true,temperature=true,head_map=true)",
    "inline(softmax_prefix=true,temperature=true)",
    "inline(agents=4)",
    "inline(agents=9,softmax_prefix=true,temperature=true)",
    "inline(agents=4,window=3)",
    "inline(agents=4,window=2,softmax_prefix=true,residual=false)",
    "inline(phi=elu1,residual=false,key_norm=true)",
    "linear(key_norm=true,temperature=true,head_map=true)",
    "linear(softmax_prefix=true,head_map=true)",
)
CROSS = [text for text in TEXTS if not MECHANISMS[Spec.parse(text).name].core.shared_qk]
every_mechanism = pytest.mark.parametrize("text", TEXTS)


def build(text: str, length: int | None = None) -> Core:
    """A core with weights that matter."""
    core = Spec.parse(text).build(DIM, HEADS, 16, length).double()
    for parameter in core.parameters():
        nn.init.normal_(parameter, std=0.4)
    return core


def check(core: Core, q: Tensor, k: Tensor, v: Tensor, place: Place) -> None:
    """All queries that count, and the factors."""
    k = q if core.shared_qk else k
    out = core(q, k, v, place)
    every = torch.arange(q.shape[1])
    counts = torch.ones(q.shape[:2], dtype=torch.bool)
    if place.key_mask is not None and place.local is None:
        counts = place.key_mask  # the output of masked queries is undefined
    assert_close(core.by_rows(q, k, v, every, place)[counts], out[counts], 1e-9)
    if not core.has_rows:
        with pytest.raises(InputError, match=r"^\w+ has no"):
            core.rows(q, k, every, place)
        return
    rows = core.rows(q, k, every, place)
    assert rows.shape[2:] == (q.shape[1], k.shape[1])
    few = torch.tensor([3, 0])
    assert_close(core.rows(q, k, few, place), rows[:, :, few], 1e-9)
    factors = core.factors(q, k, place)
    if factors is not None:
        assert_close(factors[0] @ factors[1].transpose(-1, -2), rows, 1e-12)


def three(count: int, batch: int = 2) -> list[Tensor]:
    return [2 * tokens(batch, count, HEADS, DIM // HEADS) for _ in range(3)]


@every_mechanism
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_maps(text: str, prefix: int, masked: bool) -> None:
    grid = (4, 5)
    q, k, v = three(prefix + 20)
    mask = None
    if masked:
        mask = torch.rand(2, prefix + 20) < 0.7
        mask[:, [0, -1]] = True
    check(build(text), q, k, v, Place(grid, q.flatten(2), prefix, mask))


@every_mechanism
@torch.no_grad()
def test_padded_windows(text: str) -> None:
    grid = (5, 6)
    windows = Windows(grid, (4, 4))
    q, k, v = (windows.cut(t.flatten(2)).unflatten(-1, t.shape[2:]) for t in three(30))
    place = Place((4, 4), windows.cut(tokens(2, 30, DIM)), key_mask=windows.key_mask(2, q.device))
    check(build(text), q, k, v, place)


@pytest.mark.parametrize("text", CROSS)
@pytest.mark.parametrize("key_grid", [(2, 3), (1, 1), (4, 6)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_keys_of_another_grid(text: str, key_grid: tuple[int, int], masked: bool) -> None:
    """Spatial reduction as in PVT: the local term is on the grid of the queries."""
    q, _, local = three(24)
    _, k, v = three(key_grid[0] * key_grid[1])
    place = Place((4, 6), q.flatten(2), local=local, key_grid=key_grid)
    if masked:
        mask = torch.rand(k.shape[:2]) < 0.7
        mask[:, 0] = True
        place = replace(place, key_mask=mask)
    check(build(text), q, k, v, place)


@every_mechanism
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("length", [7, LENGTH])
@torch.no_grad()
def test_sequences(text: str, prefix: int, length: int) -> None:
    q, k, v = three(prefix + length)
    mask = torch.arange(prefix + length)[None] < torch.tensor([[prefix + length], [prefix + 5]])
    check(build(text, LENGTH), q, k, v, Place((1, length), q.flatten(2), prefix, mask))


@pytest.mark.parametrize("kind", [3, 4])
@torch.no_grad()
def test_a_bias_on_the_scores_of_softmax(kind: int) -> None:
    q, k, v = three(20)
    bias = torch.randn(HEADS, 20, 20).double() if kind == 3 else torch.randn(2, HEADS, 20, 20).double()
    check(build("softmax"), q, k, v, Place((4, 5), q.flatten(2), bias=bias))


@every_mechanism
@torch.no_grad()
def test_some_images_of_a_place(text: str) -> None:
    core, (q, k, v) = build(text), three(21, batch=3)
    k = q if core.shared_qk else k
    place = Place((4, 5), q.flatten(2), 1, torch.arange(21).expand(3, -1) != 7)
    which = torch.tensor([2, 0])
    assert_close(core(q[which], k[which], v[which], place.select(which)), core(q, k, v, place)[which], 1e-12)
