"""Figures of attention: which blocks are shown, and that signs are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.analysis.figures import SIGNED, UNSIGNED, attention_figure, telling_maps
from sightline.analysis.maps import AttentionMap, block_grids

from ..models.tiny import every_family, image, tiny


def a_map(weights: list[list[float]]) -> AttentionMap:
    values = torch.tensor([weights])
    return AttentionMap("blocks.0.attn", "inline", values, values.new_zeros(1, 1), (0, 1), (2, 2))


@every_family
def test_blocks_with_one_place_say_nothing(family: str) -> None:
    model, picture = tiny(family), image(32, batch=1)[0]
    maps = telling_maps(model, picture, (0.5, 0.5))
    assert 1 <= len(maps) <= 3
    assert all(found.grid[0] * found.grid[1] > 1 for found in maps)
    assert maps[0].block == next(iter(block_grids(model, picture)))


def test_class_token() -> None:
    maps = telling_maps(tiny("deit", depths=5), image(64, batch=1)[0], None)
    assert [found.block for found in maps] == ["blocks.0.attn", "blocks.2.attn", "blocks.4.attn"]


@pytest.mark.parametrize(
    ("weights", "colours", "limits"),
    [
        ([[0.1, 0.2], [0.3, 0.4]], UNSIGNED, (0.5, 2.0)),
        ([[-0.4, 0.2], [0.3, 0.4]], SIGNED, (-2.0, 2.0)),
        ([[-0.6, 0.2], [0.3, 0.4]], SIGNED, (-3.0, 3.0)),
        ([[0.2, 0.2], [0.2, 0.2001]], UNSIGNED, (0.90025, 1.10025)),  # an even map is not blown up to noise
        ([[0.0, 0.0], [0.001, 0.0]], UNSIGNED, (0.0, 0.2)),
        ([[-0.001, 0.0], [0.001, 0.0]], SIGNED, (-0.1, 0.1)),
    ],
)
def test_colours_tell_the_sign(weights: list[list[float]], colours: str, limits: tuple[float, float]) -> None:
    figure = attention_figure([("a $title$", Image.new("L", (8, 8)), [a_map(weights)])])
    drawn = figure.axes[1].images[0]
    assert drawn.get_cmap().name == colours
    assert drawn.get_clim() == pytest.approx(limits)
    np.testing.assert_allclose(drawn.get_array(), np.array(weights) * 5, rtol=1e-6)  # 4 places and a class token
    figure.canvas.draw()
    assert figure.axes[2].yaxis.get_offset_text().get_text() == ""


def test_titles_of_long_mechanisms_do_not_overlap() -> None:
    one = replace(a_map([[0.1, 0.2], [0.3, 0.4]]), mechanism="inline(hidden=32,softmax_prefix=true,agents=49)")
    figure = attention_figure([("a", Image.new("RGB", (8, 8)), [one, one])])
    figure.canvas.draw()
    first, second = (figure.axes[i].title.get_window_extent() for i in (1, 2))
    assert first.x1 < second.x0


def test_the_query_is_marked() -> None:
    figure = attention_figure([("", Image.new("RGB", (8, 8)), [a_map([[0.1, 0.2], [0.3, 0.4]])])])
    (mark,) = figure.axes[0].lines
    assert (float(mark.get_xdata()[0]), float(mark.get_ydata()[0])) == (5.5, 1.5)
