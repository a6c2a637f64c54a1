"""Masking: what a model loses if queries cannot attend to their neighbors, or to as many random keys.

The table of the InLine paper. Inside the context manager every query of every block attends only to the keys that are
left, as if the others were not there: rows that sum to one by division (softmax, linear) are divided again, InLine's
are centered again over the keys that are left, and rows without a sum (SOFT) lose the terms. Local terms and class
tokens stay.

    with masked(model, Mask(3)):
        logits = model(images)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from sightline.analysis.capture import Arguments, Tokens, attention_blocks, watched
from sightline.analysis.figures import WIDE, bars_figure
from sightline.analysis.locality import near_keys
from sightline.analysis.study import Facts, Study
from sightline.layers.core import Core, Grid
from sightline.util.errors import InputError

CHUNK = 1 << 24  # weights in memory at a time
TOLERANCE = 1e-3  # of row sums that are one by division


@dataclass
class Mask:
    """Which keys are hidden from a query: those of its `size` x `size` neighborhood, or as many random ones."""

    size: int
    random: bool = False
    seed: int = 0
    generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def hidden(self, positions: Tensor, grid: Grid, keys: Tensor, key_grid: Grid, images: int = 1) -> Tensor:
        """(images or 1, Q, M) for queries at `positions` of a grid and keys at `keys` of theirs, below 0 for none."""
        near = near_keys(positions, grid, key_grid, 0, self.size)  # Q, positions of the key grid
        on_grid = keys >= 0
        local = (near[:, keys.clamp(min=0)] & on_grid)[None]
        if not self.random:
            return local
        draw = torch.rand((images, *local.shape[1:]), generator=self.generator).to(local.device)
        return draw.masked_fill(~on_grid, 2.0).argsort(-1).argsort(-1) < local.sum(-1, keepdim=True)


@contextmanager
def masked(model: nn.Module, mask: Mask) -> Iterator[None]:
    """Hide keys in every attention block of a model."""
    modules = dict(model.named_modules())
    with ExitStack() as stack:
        for name in attention_blocks(model):
            stack.enter_context(watched(modules[name], partial(_without_hidden, mask)))
        yield


@torch.no_grad()
def _without_hidden(mask: Mask, core: Core, args: Arguments, out: Tensor, tokens: Tokens) -> Tensor:
    """The output (B, N, H, D) of a core with its weights replaced by those of the keys that are left."""
    (q, k, v, place), grid, prefix = args, tokens.grid, tokens.prefix
    positions = tokens.positions[core]
    out = out.clone()
    for number, window in enumerate(positions):
        which = torch.arange(number, q.shape[0], len(positions), device=q.device)  # this window of every image
        own, on_grid = place.select(which), window - 1 - prefix
        keys = torch.arange(k.shape[1], device=k.device) if k.shape[1] != len(window) else on_grid
        size = max(1, CHUNK // (len(which) * k.shape[1] * q.shape[2]))
        for chunk in torch.arange(q.shape[1], device=q.device).split(size):
            weights = core.rows(q[which], k[which], chunk, own)  # b H Q M
            hidden = mask.hidden(on_grid[chunk], grid, keys, place.key_grid or grid, len(which))
            hidden = hidden & (window[chunk] > prefix)[:, None]
            change = left_over(core, weights, hidden, own.key_mask) - weights
            mixed = apply_weights(change, v[which])
            gate = core.gate(own)
            out[which[:, None], chunk] += (mixed if gate is None else mixed * gate[:, chunk]).to(out.dtype)
    return out


def left_over(core: Core, weights: Tensor, hidden: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """The weights (B, H, Q, M) of the keys that are left when `hidden` (B or 1, Q, M) are taken away.

    As the mechanism would have them: centered over what is left (InLine), divided by their sum if rows sum to one, and
    else unchanged. A row without any key is zero.
    """
    gone = hidden[:, None]
    kept = weights.masked_fill(gone, 0)
    if core.centred:
        counts = torch.ones_like(weights[:, :1, :1]) if key_mask is None else key_mask[:, None, None].to(weights)
        before, after = counts.sum(-1, keepdim=True), (counts * ~gone).sum(-1, keepdim=True).clamp(min=1)
        # w = (s (a - mean a) + 1) / N, so the weights of fewer keys follow from w alone.
        centred = (kept - kept.sum(-1, keepdim=True) / after) * (before / after) + 1 / after
        return (centred * counts).masked_fill(gone, 0)
    if bool(((weights.sum(-1) - 1).abs() < TOLERANCE).all()):
        total = kept.sum(-1, keepdim=True)
        return torch.where(total.abs() > 1e-12, kept / total, 0.0)
    return kept


def apply_weights(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (B, heads, Q, M) of values (B, M, H, D) -> (B, Q, H, D); one channel per head if there are as many."""
    heads, dim = v.shape[2:]
    if weights.shape[1] == heads * dim and dim > 1:
        return torch.einsum("bcqm,bmc->bqc", weights, v.flatten(2)).unflatten(2, (heads, dim))
    if weights.shape[1] != heads:
        raise InputError(f"a mechanism with its own {weights.shape[1]} heads cannot be masked; choose another one")
    return torch.einsum("bhqm,bmhd->bqhd", weights, v)


@dataclass(frozen=True)
class Labelled:
    """A classifier and labeled batches (images, labels) on its device, from the start at every call of `batches`."""

    title: str
    model: nn.Module
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]


def study_masking(subjects: Sequence[Labelled], sizes: Sequence[int], seed: int = 0) -> Study:
    """Top-1 with nothing masked, with the local size x size keys masked, and with as many random ones."""
    results: list[Facts] = []
    rows: list[list[str]] = []
    series: dict[str, list[float]] = {}
    for subject in subjects:
        whole, images = accuracy(subject, None)
        local = [accuracy(subject, Mask(size, seed=seed))[0] for size in sizes]
        random = [accuracy(subject, Mask(size, True, seed))[0] for size in sizes]
        results.append({"title": subject.title, "images": images, "top1": whole, "local": local, "random": random})
        rows.append([subject.title, f"{images:,}", *(f"{value:.2f}" for value in (whole, *local, *random))])
        series[f"{subject.title}, local"] = [whole, *local]
        series[f"{subject.title}, random"] = [whole, *random]
    groups = ["nothing", *(f"{size}x{size} or {size * size}" for size in sizes)]
    width = max(WIDE, 0.5 * len(groups) * len(series) + 2)
    figure = bars_figure(["Top-1 with keys masked for every query"], "top-1, %", groups, [series], width, numbers=True)
    return Study(
        "masking", "Accuracy with local or random keys masked (InLine paper, table)",
        {"sizes": list(sizes), "seed": seed, "subjects": results}, {"masking": figure},
        ("model", "images", "top-1 %", *(f"local {s}x{s}" for s in sizes), *(f"random {s * s}" for s in sizes)), rows,
        ["Every query of every layer attends to the keys that are left, as if the others were not there; local terms "
         "and the class token stay. Random keys are drawn for each query, as many as its neighborhood has inside the "
         "map."],
    )  # fmt: skip


@torch.no_grad()
def accuracy(subject: Labelled, mask: Mask | None) -> tuple[float, int]:
    """Top-1 in percent under a mask, and the number of images."""
    right = total = 0
    for images, labels in subject.batches():
        with nullcontext() if mask is None else masked(subject.model, mask):
            right += int((subject.model(images).argmax(-1) == labels).sum())
        total += len(labels)
    return 100 * right / max(total, 1), total
