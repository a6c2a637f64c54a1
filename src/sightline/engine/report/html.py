"""Pages of runs and analyses: sections of blocks, rendered by one template into HTML that needs no other file.

    page = render("My run", [Section("Curves", [Picture.read(path, "learning curves")])])

The template escapes all text: a class may be called `<script>`. Pages share their style, and the scripts of maps, with
those of `sightline explore`: the files in `web`.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from sightline.analysis.study import Facts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Block", "Cards", "Code", "Columns", "Hover", "Picture", "Section", "Table", "Text", "render"]

WEB = Path(__file__).parent / "web"


@dataclass(frozen=True)
class Picture:
    """An image inside the page; `format` is png or gif."""

    data: bytes
    alt: str
    format: str = "png"

    @classmethod
    def read(cls, path: Path, alt: str) -> "Picture":
        """The image in a file."""
        return cls(path.read_bytes(), alt, path.suffix.lstrip("."))

    @classmethod
    def draw(cls, figure: "Figure", alt: str, dpi: int = 110) -> "Picture":
        """A figure of matplotlib."""
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=dpi, bbox_inches="tight")
        return cls(out.getvalue(), alt)

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()


@dataclass(frozen=True)
class Hover:
    """Attention maps whose query follows the pointer; `still` is shown and printed where scripts do not run."""

    data: Facts  # of `hover_maps`
    still: Picture | None = None


@dataclass(frozen=True)
class Table:
    """Rows of cells; columns with an index in `numeric` are aligned right."""

    rows: Sequence[Sequence[str]]
    columns: Sequence[str] = ()
    numeric: frozenset[int] = frozenset()
    caption: str = ""


@dataclass(frozen=True)
class Cards:
    """Large numbers, each as (label, value)."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """A paragraph; `style` is note, under, warn or missing."""

    text: str
    style: str = "note"


@dataclass(frozen=True)
class Code:
    """Preformatted text."""

    text: str


@dataclass(frozen=True)
class Columns:
    """Blocks next to each other, if the page is wide enough."""

    blocks: Sequence["Block"]


Block = Picture | Hover | Table | Cards | Text | Code | Columns


@dataclass(frozen=True)
class Section:
    """Blocks under a title; `remark` follows the title in the table of contents."""

    title: str
    blocks: Sequence[Block]
    remark: str = ""


def render(
    title: str, sections: Sequence[Section], *, subtitle: str = "", warnings: Sequence[str] = (), contents: bool = False
) -> str:
    """The page as HTML, with styles and pictures inside; a script only if there are maps to point at.

    Args:
        title: of the page.
        sections: in order; one with an empty title has no heading.
        subtitle: a line under the title.
        warnings: lines that a reader must not miss.
        contents: whether to link all sections at the top.
    """
    scripts = ["heatmap.js", "hover.js"] if any(_has_hover(section.blocks) for section in sections) else []
    return _template().render(
        title=title, sections=sections, subtitle=subtitle, warnings=warnings, contents=contents,
        style=_file("theme.css"), scripts=[_file(name) for name in scripts],
    )  # fmt: skip


def _has_hover(blocks: Sequence[Block]) -> bool:
    return any(
        isinstance(block, Hover) or (isinstance(block, Columns) and _has_hover(block.blocks)) for block in blocks
    )


@cache
def _file(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(Path(__file__).with_name("template.html").read_text(encoding="utf-8"))
