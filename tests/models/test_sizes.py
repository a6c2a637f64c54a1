"""Images of any size, shape, number of channels and dtype."""

import re

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.position import PositionTable

from .tiny import CLASSES, TINY, assert_close, every_family, fresh, image, last_grid, relative_error, tiny
from .weights import enliven

WITH_TABLES = ["deit", "pvt", "soft", "soft_norm"]
SIZES = [(97, 96), (64, 256), (128, 128), (32, 512), (33, 31), (8, 8), (1, 1), (3, 200), (2, 2)]


def tables(model: nn.Module) -> dict[str, PositionTable]:
    return {name: module for name, module in model.named_modules() if isinstance(module, PositionTable)}


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_any_size(family: str, size: tuple[int, int]) -> None:
    model, x = tiny(family), image(*size, batch=1)
    logits = model(x)
    assert logits.shape == (1, CLASSES)
    assert logits.isfinite().all()
    maps = model.forward_intermediates(x, intermediates_only=True)
    for got, info in zip(maps, model.feature_info, strict=True):
        assert tuple(got.shape[2:]) == tuple(-(-side // info["reduction"]) for side in size)
    assert tuple(maps[-1].shape[2:]) == last_grid(family, *size)


@every_family
def test_training_at_an_odd_size(family: str) -> None:
    model = tiny(family).train()
    model(image(45, 70)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("family", ["deit", "pvt", "swin", "cswin"])
def test_an_odd_size_is_zero_padded_at_the_far_edge(family: str) -> None:
    model, x = tiny(family), image(97, 90, batch=1)
    side = model.stem_stride
    padded = F.pad(x, (0, -90 % side, 0, -97 % side))
    assert_close(model(x), model(padded))
    assert relative_error(model(F.pad(x, (-90 % side, 0, -97 % side, 0))), model(x)) > 1e-3


@every_family
def test_the_shape_counts_and_not_the_number_of_tokens(family: str) -> None:
    """The same pixels row by row, as 64 x 256 and as 128 x 128, are different images."""
    model, x = tiny(family), image(64, 256, batch=1)
    assert relative_error(model(x.reshape(1, 3, 128, 128)), model(x)) > 1e-2
    assert relative_error(model(x.transpose(2, 3)), model(x)) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_TABLES)
def test_positions_follow_the_shape(family: str) -> None:
    """A square model on a wide image is a wide model with its tables resampled, and no other."""
    square, x = tiny(family, img_size=128), image(64, 256, batch=1)
    right = tiny(family, img_size=(64, 256))
    right.load_state_dict(by_hand(square, right, reshape=False))
    assert_close(square(x), right(x))
    wrong = tiny(family, img_size=(64, 256))
    wrong.load_state_dict(by_hand(square, wrong, reshape=True))
    assert relative_error(wrong(x), square(x)) > 1e-2


def by_hand(model: nn.Module, other: nn.Module, reshape: bool) -> dict[str, Tensor]:
    """The weights of `model` for the grids of `other`: resampled, or wrongly as rows of equal number."""
    state = dict(model.state_dict())
    for name, table in tables(other).items():
        old, grid = state[f"{name}.weight"], tuple(table.weight.shape[1:3])
        assert old.shape[1:3].numel() == grid[0] * grid[1]
        mode = {"mode": "bicubic", "antialias": True} if model.family == "deit" else {"mode": "bilinear"}
        resampled = F.interpolate(old.permute(0, 3, 1, 2), grid, **mode).permute(0, 2, 3, 1)
        state[f"{name}.weight"] = old.reshape(1, *grid, -1) if reshape else resampled
    return state


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_input_channels(family: str, channels: int) -> None:
    model = tiny(family, in_chans=channels)
    assert model(image(40, 56, batch=1, channels=channels)).shape == (1, CLASSES)
    with pytest.raises(ValueError, match=rf"\(2, 4, .*\(batch, {channels}, height, width\)"):
        model(image(channels=4))


@every_family
def test_double_precision(family: str) -> None:
    model, x = tiny(family), image(97, 64)
    expected = model(x)
    got = model.double()(x.double())
    assert got.dtype == torch.float64
    assert relative_error(got, expected.double()) < 1e-5


@every_family
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on processors without bfloat16
def test_half_precision(family: str) -> None:
    model, x = tiny(family), image(97, 64)
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(x)
    assert relative_error(mixed.float(), expected) < 0.05
    half = model.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert relative_error(half.float(), expected) < 0.1


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("size", [96, (40, 72), (128, 33)], ids=str)
def test_set_input_size_changes_nothing_at_that_size(family: str, size: int | tuple[int, int]) -> None:
    model = tiny(family)
    height, width = (size, size) if isinstance(size, int) else size
    x = image(height, width)
    before = model(x)
    model.set_input_size(size)
    assert model.img_size == (height, width)
    assert_close(model(x), before)
    for name, table in tables(model).items():
        stride = 16 if family == "deit" else 4 * 2 ** int(name.split(".")[1])
        assert tuple(table.weight.shape[1:3]) == (-(-height // stride), -(-width // stride))
    assert all(p.requires_grad for p in model.parameters())


@every_family
def test_set_input_size_is_the_size_of_a_new_model(family: str) -> None:
    model = tiny(family)
    model.set_input_size(img_size=(40, 72))
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes == {k: v.shape for k, v in fresh(family, img_size=(40, 72)).state_dict().items()}


@every_family
def test_the_patch_is_fixed(family: str) -> None:
    model = tiny(family)
    side = 16 if family == "deit" else 4
    model.set_input_size(patch_size=side)
    with pytest.raises(ValueError, match=f"^patch_size=8.*{side}"):
        model.set_input_size(patch_size=8)
    with pytest.raises(ValueError, match=r"^img_size=\(0, 64\)"):
        model.set_input_size((0, 64))


def test_swin_windows_can_be_resized() -> None:
    model, x = tiny("swin", window_size=4), image(160)
    blocks = model.stages[3].blocks
    assert [(block.attn.window, block.attn.shift()) for block in blocks] == [(4, 0), (4, 2)]
    old = blocks[0].attn.position_bias.table.detach().clone()
    before = model(x)
    model.set_input_size(160, window_size=3)
    assert [(block.attn.window, block.attn.shift()) for block in blocks] == [(3, 0), (3, 1)]
    maps = old.T.reshape(1, -1, 7, 7)
    expected = F.interpolate(maps, (5, 5), mode="bicubic", antialias=True).reshape(-1, 25).T
    assert_close(blocks[0].attn.position_bias.table.detach(), expected)
    assert relative_error(model(x), before) > 1e-3
    other = tiny("swin", window_size=3)
    other.load_state_dict(model.state_dict())
    assert_close(model(x), other(x))


@pytest.mark.parametrize("window", [0, -7])
def test_bad_windows(window: int) -> None:
    with pytest.raises(ValueError, match=rf"^window_size={window}.*positive.*$"):
        fresh("swin", window_size=window)
    with pytest.raises(ValueError, match=rf"^window_size={window}.*positive.*$"):
        fresh("swin").set_input_size(64, window_size=window)


@pytest.mark.parametrize("wrong", [{"stripes": (1, 2, 0, 7)}, {"map_stripes": (0, -1, 0, 0)}], ids=str)
def test_bad_stripes(wrong: dict) -> None:
    with pytest.raises(ValueError, match="stripes=.*" + re.escape(str(next(iter(wrong.values()))))):
        fresh("cswin", **wrong)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deit", "swin", "pvt", "cswin", "soft"])
def test_published_models_at_other_shapes(family: str) -> None:
    """Published patches, windows and tables; narrow, but for SOFT, where an image of few channels changes too much."""
    name, arguments = TINY[family]
    narrow = {key: value for key, value in arguments.items() if key not in ("window_size", "stripes")}
    model = enliven(timm.create_model(name, **(narrow if family != "soft" else {"depths": (1, 1, 1, 2)}))).eval()
    with torch.inference_mode():
        for height, width in ((112, 448), (225, 224)):
            x = image(height, width, batch=1)
            logits = model(x)
            assert logits.shape == (1, 1000)
            assert logits.isfinite().all()
        square = model(x[..., :224, :])
    assert 1e-6 < relative_error(square, logits) < 0.5, "one row of pixels more is not another image"
