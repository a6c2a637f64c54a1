"""Figures of attention. Drawn without a display; matplotlib is imported when a figure is made."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor, nn

from sightline.analysis.capture import capture
from sightline.analysis.maps import AttentionMap, Query, maps_of
from sightline.util.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 2.2  # inches
TITLE = 30  # letters in a line of a title
SIGNED = "RdBu_r"  # blue below zero, white at zero, red above
UNSIGNED = "viridis"
SPAN = 0.2  # least width of a scale, in multiples of uniform attention


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; width and height in inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("figures need matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def attention_figure(rows: "Sequence[tuple[str, Image.Image, Sequence[AttentionMap]]]") -> "Figure":
    """A row per image: its title, the preprocessed image with the query marked, and the maps next to it.

    A map shows the mean over heads, as a multiple of uniform attention, 1 / N, on a scale of its own, at least SPAN
    wide: a uniform map looks uniform. Weights keep their sign: if any is negative, blue is negative, white zero and red
    positive; otherwise dark is least, bright most.
    """
    columns = 1 + max((len(maps) for _, _, maps in rows), default=0)
    figure = new_figure(PANEL * columns + 0.8, (PANEL + 0.45) * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes, (title, image, maps) in zip(grid, rows, strict=True):
        for axis in axes:
            axis.set_axis_off()
        _draw_image(axes[0], title, image, maps)
        for axis, found in zip(axes[1:], maps, strict=False):
            _draw_map(figure, axis, found, image.size)
    return figure


def _draw_image(axis: "Axes", title: str, image: Image.Image, maps: "Sequence[AttentionMap]") -> None:
    axis.imshow(image.convert("RGB"))
    axis.set_title(fill(title, TITLE), fontsize=8, parse_math=False)
    if maps and maps[-1].position is not None:
        # The middle of the token, in the finest grid that is shown.
        finest = max(maps, key=lambda found: found.grid[0])
        assert finest.position is not None
        down, across = ((p + 0.5) / n for p, n in zip(finest.position, finest.grid, strict=True))
        axis.plot(across * image.width - 0.5, down * image.height - 0.5, "o", mfc="none", mec="lime", ms=9, mew=2)


def _draw_map(figure: "Figure", axis: "Axes", found: AttentionMap, size: tuple[int, int]) -> None:
    mean = found.weights.mean(0).numpy()
    relative = mean * (mean.size + found.prefix.shape[1])
    low, high, colours = _scale(float(relative.min()), float(relative.max()))
    extent = (0, size[0], size[1], 0)
    drawn = axis.imshow(relative, cmap=colours, vmin=low, vmax=high, extent=extent, interpolation="nearest")
    axis.set_title(f"{found.block.removesuffix('.attn')}, {found.mechanism}", fontsize=7, parse_math=False)
    bar = figure.colorbar(drawn, ax=axis, fraction=0.046, pad=0.03)
    bar.ax.tick_params(labelsize=6)
    bar.ax.ticklabel_format(useOffset=False)  # plain numbers, without an offset in the corner


def _scale(low: float, high: float) -> tuple[float, float, str]:
    """The ends of a map's scale, far enough apart that rounding does not look like a pattern, and its colors."""
    if low < 0:
        end = max(-low, high, SPAN / 2)
        return -end, end, SIGNED
    missing = max(0.0, SPAN - (high - low)) / 2
    low = max(0.0, low - missing)
    return low, max(high + missing, low + SPAN), UNSIGNED


def telling_maps(model: nn.Module, image: Tensor, query: Query, count: int = 3) -> list[AttentionMap]:
    """Maps of `count` blocks from the first to the last, of those with more than one token."""
    blocks = [block for block in capture(model, image) if block.tokens - block.prefix > 1]
    maps = maps_of(blocks, query)
    return [maps[i] for i in first_to_last(len(maps), count)]


def first_to_last(total: int, count: int) -> list[int]:
    """At most `count` indices below `total`, evenly spread, with both ends."""
    return sorted({round(i * (total - 1) / (count - 1)) for i in range(count)} & set(range(total)))
