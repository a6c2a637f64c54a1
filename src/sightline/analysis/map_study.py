"""Attention maps of chosen queries: by layer, by head, or rolled up; side by side, and as an animation."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from PIL import Image

from sightline.analysis.capture import BlockCall
from sightline.analysis.figures import attention_figure
from sightline.analysis.hover import hover_maps
from sightline.analysis.maps import AttentionMap, Patch, Query, in_shares, map_of, maps_of, roll_up
from sightline.analysis.study import Facts, Study, Subject, short, telling_blocks
from sightline.util.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 6  # maps next to an image before the next line
SIDE = 4  # queries of an animation, down and across
FRAME_MS = 450
Moment = tuple[Mapping[str, BlockCall], Query]  # of an animation: a block per subject and the query
SCALE = (
    "Weights are shown as multiples of uniform attention, 1 / N, on the scale next to each map. If any is negative, "
    "blue is below zero, white zero and red above; otherwise dark is least and bright most. The ring is the query. The "
    "3x3 residual of InLine and the convolution of SOFT are added on top and are not drawn."
)


@torch.no_grad()
def study_maps(
    subjects: Sequence[Subject],
    shown: Image.Image,
    name: str,
    queries: Sequence[Query | Patch] = ((0.5, 0.5),),
    view: str = "layers",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    animate: str = "none",
    hover: bool = False,
) -> Study:
    """The attention of every subject on its first image, which is called `name` and drawn as `shown`.

    Args:
        queries: fractions of the height and width of the image, patches of the finest map of the first subject, or
            None for the class token.
        view: layers, heads or rollout.
        layers: numbers from 0 on, below zero from the end; all by default.
        heads: indices from 0; all by default, averaged in the view `layers`.
        animate: layers, queries or none.
        hover: whether to add the maps of all queries, for a page.

    Raises:
        InputError: there is no such layer, head or patch, or no class token where it is asked for.
    """
    first = subjects[0]
    where = [in_shares(query, first.model, first.images[0]) for query in queries]
    captured = {subject.title: _chosen_blocks(subject, layers, None in where) for subject in subjects}
    figures: dict[str, Figure] = {}
    results: list[Facts] = []
    table: list[list[str]] = []
    for number, query in enumerate(where, 1):
        rows: list[tuple[str, Image.Image, list[AttentionMap]]] = []
        place = "class token" if query is None else f"query at {query[0]:.2f}, {query[1]:.2f}"
        for title, blocks in captured.items():
            maps = _maps(blocks, query, view, heads)
            results += [_fact(title, query, found) for found in maps]
            table += [_row(title, query, found) for found in maps]
            for start in range(0, len(maps), COLUMNS):
                rows.append((f"{title}, {place}", shown, maps[start : start + COLUMNS]))
        figures["maps" if len(where) == 1 else f"maps-{number}"] = attention_figure(rows)
    facts: Facts = {"image": name, "view": view, "maps": results}
    columns = ("model", "layer", "mechanism", "query", "least", "most", "sum")
    study = Study("maps", f"Attention maps of {name}", facts, figures, columns, table, [SCALE])
    if hover:
        study.hovers = [hover_maps(title, shown, blocks) for title, blocks in captured.items()]
    if animate != "none":
        moments = _over_layers(captured, where[0]) if animate == "layers" else _over_queries(captured)
        study.animations[f"maps-{animate}"] = _gif([_frame(at, query, shown, heads) for at, query in moments])
    return study


def _chosen_blocks(subject: Subject, layers: Sequence[int] | None, of_class: bool) -> list[BlockCall]:
    """The chosen blocks of a subject's first image, of those with more than one key."""
    blocks = telling_blocks(subject.model, subject.images[0])
    if not blocks:
        raise InputError(f"{subject.title} has one key only at this image size; give a larger img_size")
    for layer in layers or ():
        if not -len(blocks) <= layer < len(blocks):
            raise InputError(f"{subject.title} has no layer {layer}; its layers are 0 to {len(blocks) - 1}")
    chosen = blocks if layers is None else [blocks[layer] for layer in layers]
    if of_class and not any(block.prefix for block in chosen):
        raise InputError(f"{subject.title} has no class token in these layers; give a position such as 0.5,0.5")
    return chosen


def _maps(blocks: Sequence[BlockCall], query: Query, view: str, heads: Sequence[int] | None) -> list[AttentionMap]:
    """The maps of one query in a view."""
    if view == "rollout":
        return [roll_up(blocks, query)]
    maps = maps_of(blocks, query)
    if view == "layers":
        return [_of_heads(found, heads) for found in maps]
    return [
        replace(_of_heads(found, [head]), block=f"{short(found.block)} head {head}")
        for found in maps
        for head in heads or range(len(found.weights))
    ]


def _of_heads(found: AttentionMap, heads: Sequence[int] | None) -> AttentionMap:
    """A map with the chosen heads only."""
    if heads is None:
        return found
    for head in heads:
        if not 0 <= head < len(found.weights):
            raise InputError(f"{found.block} has no head {head}; its heads are 0 to {len(found.weights) - 1}")
    return replace(found, weights=found.weights[list(heads)], prefix=found.prefix[list(heads)])


def _over_layers(captured: Mapping[str, Sequence[BlockCall]], query: Query) -> Iterator[Moment]:
    """One frame per layer for a query."""
    if query is None:  # not every block has the class token
        captured = {title: [block for block in blocks if block.prefix] for title, blocks in captured.items()}
    depth = max(len(blocks) for blocks in captured.values())
    for i in range(depth):
        yield {title: blocks[i * len(blocks) // depth] for title, blocks in captured.items()}, query


def _over_queries(captured: Mapping[str, Sequence[BlockCall]]) -> Iterator[Moment]:
    """One frame per query across the image, back and forth, in the last layer."""
    at = {title: blocks[-1] for title, blocks in captured.items()}
    for row in range(SIDE):
        for column in range(SIDE) if row % 2 == 0 else reversed(range(SIDE)):
            yield at, ((row + 0.5) / SIDE, (column + 0.5) / SIDE)


def _frame(
    blocks: Mapping[str, BlockCall], query: Query, shown: Image.Image, heads: Sequence[int] | None
) -> Image.Image:
    """One frame: the image, and a map per subject."""
    maps = [replace(_of_heads(map_of(block, query), heads), mechanism=title) for title, block in blocks.items()]
    out = io.BytesIO()
    attention_figure([("", shown, maps)]).savefig(out, format="png", dpi=100)
    return Image.open(out).convert("RGB").quantize(128)


def _gif(frames: Sequence[Image.Image]) -> bytes:
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0)
    return out.getvalue()


def _fact(title: str, query: Query, found: AttentionMap) -> Facts:
    return {
        "subject": title, "query": "class" if query is None else list(query), "block": found.block,
        "mechanism": found.mechanism, "place": found.position, "grid": found.grid,
        "prefix": found.prefix.tolist(), "weights": found.weights.tolist(),
    }  # fmt: skip


def _row(title: str, query: Query, found: AttentionMap) -> list[str]:
    """Least, most and sum of a map, mean over heads; the first two as multiples of uniform attention."""
    mean = found.weights.mean(0)
    keys = mean.numel() + found.prefix.shape[1]
    position = "class" if query is None else ",".join(f"{share:g}" for share in query)
    numbers = [f"{float(mean.min()) * keys:.2f}", f"{float(mean.max()) * keys:.2f}", f"{float(mean.sum()):.3f}"]
    return [title, short(found.block), found.mechanism, position, *numbers]
