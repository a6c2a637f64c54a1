"""What an exported graph goes through before it is written, and the names of its axes."""

from inspect import currentframe
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.exc import CppCompileError, InductorError
from torch.export import Dim, export

from sightline import backend
from sightline.hub import formats
from sightline.hub.formats import check_dynamic
from sightline.layers.patch import picked_patches, to_map, to_tokens
from sightline.util.errors import InputError


@pytest.mark.parametrize(
    ("error", "shown"),
    [(CppCompileError(["g++"], "no such file"), "compiler"), (OSError(28, "no space left"), "space")],
)
def test_packages_that_cannot_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    def compile_package(*args: object, **options: object) -> None:
        raise InductorError(error, currentframe())

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", compile_package)
    with pytest.raises(InputError, match=shown):
        formats.write_package(export(nn.Linear(2, 2), (torch.zeros(1, 2),)), tmp_path / "model.pt2", {})
    assert list(tmp_path.iterdir()) == []


class Tokens(nn.Module):
    """Linear layers of a symbolic number of tokens, and of their transpose, which is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.flatten(2).transpose(1, 2)[:, 1:].contiguous()  # (B, h w - 1, 8)
        return self.first(self.norm(x)), self.second(x[:, :, :4].transpose(0, 1))


@torch.no_grad()
def test_linear_layers_of_any_number_of_tokens_take_matrices() -> None:
    model, axes = Tokens(), {0: Dim("b", min=2, max=9), 2: Dim("h", min=2, max=99), 3: Dim("w", min=2, max=99)}
    program = export(model, (torch.randn(2, 8, 5, 7),), dynamic_shapes=(axes,))
    formats.flatten_rows(program)
    taken = [node.args[0] for node in program.graph.nodes if node.target is torch.ops.aten.linear.default]
    assert [x.target is torch.ops.aten.as_strided.default for x in taken] == [True, False]
    images = torch.randn(3, 8, 4, 6)
    for found, wanted in zip(program.module()(images), model(images), strict=True):
        torch.testing.assert_close(found, wanted)


class Merges(nn.Module):
    """Tokens as a map, whose patches are gathered: of the map itself, and of the map turned by 90 degrees."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = to_tokens(x)[0].contiguous() * 2
        maps = to_map(tokens, (x.shape[2], x.shape[3]))
        return picked_patches(maps, (2, 2))[0], picked_patches(maps.transpose(2, 3), (2, 2))[0]


@torch.no_grad()
def test_patches_are_gathered_from_the_tokens_of_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "patch_kernel", lambda x: True)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # the kernel runs on a GPU or is interpreted
    model, axes = Merges(), {0: Dim("b", min=2, max=9), 2: Dim("h", min=2, max=99), 3: Dim("w", min=2, max=99)}
    program = export(model, (torch.randn(2, 8, 5, 7, device=device),), dynamic_shapes=(axes,), strict=False)
    formats.skip_views(program)
    given = [node.args[0] for node in program.graph.nodes if "gather_patches" in str(node.target)]
    assert [x.target is torch.ops.aten.mul.Tensor for x in given] == [True, False]
    images = torch.randn(3, 8, 4, 6, device=device)
    for found, wanted in zip(program.module()(images), model(images), strict=True):
        assert torch.equal(found, wanted)


@torch.no_grad()
def test_images_for_which_indices_are_too_short_are_rejected() -> None:
    model, axes = Tokens(), {0: Dim("b", min=2, max=999), 2: Dim("h", min=2, max=99), 3: Dim("w", min=2, max=99)}
    program = export(model, (torch.randn(2, 8, 5, 7),), dynamic_shapes=(axes,))
    assert not formats.limit_numbers(program, 2 * 8 * 5 * 7 - 1)
    program.module()(torch.randn(3, 8, 5, 7))
    assert formats.limit_numbers(program, 999)
    module = program.module()
    for shape in ((2, 8, 6, 10), (3, 8, 5, 8), (10, 8, 2, 6)):
        images = torch.randn(shape)
        torch.testing.assert_close(module(images), model(images))
    for shape in ((2, 8, 8, 8), (3, 8, 6, 7), (60, 8, 2, 2)):
        with pytest.raises(RuntimeError, match="smaller or fewer images"):
            module(torch.randn(shape))


def test_axes_as_a_text_or_a_sequence() -> None:
    assert check_dynamic("width, batch") == check_dynamic(("width", "batch")) == ("batch", "width")
    assert check_dynamic("") == check_dynamic("none") == check_dynamic(("none",)) == ()
    with pytest.raises(InputError, match=r"dynamic: expected some of batch, height, width, or none; got 'depth'"):
        check_dynamic("batch,depth")
