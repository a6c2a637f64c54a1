"""Maps of many queries of one image, small enough for a page, on which a reader points at patches."""

import base64
import io
import math
from collections.abc import Sequence

import torch
from PIL import Image

from sightline.analysis.capture import BlockCall
from sightline.analysis.maps import token_of
from sightline.analysis.study import Facts, short
from sightline.layers.core import Grid

MAX_WEIGHTS = 100_000  # of a block: queries times keys, a byte each
SIDE = 448  # pixels of the photograph
STEPS = 127


@torch.no_grad()
def hover_maps(title: str, image: Image.Image, blocks: Sequence[BlockCall]) -> Facts:
    """The attention of all patches of an image in some blocks, mean over heads, as JSON for `hover.js`.

    If patches are many, the queries are a coarser grid of them.

    Args:
        title: of the image.
        image: as the model sees it.
        blocks: calls with this image.
    """
    return {"title": title, "photo": _photo(image), "maps": [_all_queries(block) for block in blocks]}


def _all_queries(block: BlockCall) -> Facts:
    down, across = query_grid(block.grid, block.keys)
    tokens = [token_of(block, ((i + 0.5) / down, (j + 0.5) / across)) for i in range(down) for j in range(across)]
    weights = block.rows(tokens).mean(0).cpu()[:, block.prefix :]  # (Q, M)
    scale = weights.abs().amax(1).clamp(min=torch.finfo(weights.dtype).tiny) / STEPS
    packed = (weights / scale[:, None]).round().to(torch.int8).numpy().tobytes()
    return {
        "name": short(block.name), "mechanism": block.mechanism, "grid": block.key_grid, "queries": [down, across],
        "keys": block.keys, "weights": base64.b64encode(packed).decode(), "scale": scale.tolist(),
    }  # fmt: skip


def query_grid(grid: Grid, keys: int) -> Grid:
    """The (rows, columns) of queries that fit: all of the grid, or evenly fewer.

    Example:
        >>> query_grid((14, 14), 197), query_grid((64, 64), 4096)
        ((14, 14), (4, 4))
    """
    share = min(1.0, math.sqrt(MAX_WEIGHTS / (grid[0] * grid[1] * keys)))
    return max(1, int(grid[0] * share)), max(1, int(grid[1] * share))


def _photo(image: Image.Image) -> str:
    """The image as a data address."""
    small, out = image.convert("RGB"), io.BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(out, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
