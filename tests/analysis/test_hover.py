"""Maps of all queries for pages: the same numbers as those of single queries, in bounded space."""

import base64

import numpy as np
import pytest
from PIL import Image

from sightline.analysis.capture import capture
from sightline.analysis.hover import MAX_WEIGHTS, hover_maps, query_grid
from sightline.analysis.maps import map_of

from ..models.tiny import image, tiny


@pytest.mark.parametrize("family", ["deit", "swin"])
def test_maps_of_all_queries(family: str) -> None:
    block = capture(tiny(family), image(64, batch=1)[0])[0]
    data = hover_maps("<b>", Image.new("RGB", (64, 64)), [block])
    (found,) = data["maps"]
    (down, across), (high, wide) = found["queries"], found["grid"]
    assert (down, across) == block.grid
    steps = np.frombuffer(base64.b64decode(found["weights"]), np.int8).reshape(down * across, high * wide)
    query = 2 * across + 3  # row 2, column 3
    expected = map_of(block, (2.5 / down, 3.5 / across)).weights.mean(0).flatten().numpy()
    assert steps[query] * found["scale"][query] == pytest.approx(expected, abs=0.51 * found["scale"][query])
    assert found["keys"] == high * wide + block.prefix


@pytest.mark.parametrize(("grid", "keys"), [((14, 14), 197), ((64, 64), 4096), ((1, 3), 10**6), ((56, 84), 49)])
def test_queries_fit(grid: tuple[int, int], keys: int) -> None:
    down, across = query_grid(grid, keys)
    assert 1 <= down <= grid[0]
    assert 1 <= across <= grid[1]
    assert down * across in (1, grid[0] * grid[1]) or down * across * keys <= MAX_WEIGHTS
