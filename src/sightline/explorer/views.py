"""One model and one image: the answers to everything that the page asks about them.

A view records once what the blocks are called with; rows of attention are then computed one at a time, O(N).

Shape letters: H heads, N tokens, M keys, D head dim, r columns of factors.
"""

import time
from base64 import b64encode
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from sightline.analysis.capture import BlockCall, attention_blocks, capture, with_rows
from sightline.analysis.confusions import USUAL
from sightline.analysis.maps import last_run, rolled_row, rolled_rows
from sightline.data.labels import in_words
from sightline.engine.study_models import StudyModel
from sightline.explorer.factored import with_kept_factors
from sightline.explorer.inside import (
    SCORES,
    Compared,
    compared_heads,
    confused_pairs,
    confused_shares,
    confused_with,
    has_local,
    local_row,
)
from sightline.explorer.kept import Kept
from sightline.layers.core import Factors
from sightline.models.base import VisionModel
from sightline.util.errors import InputError

Query: TypeAlias = int | Literal["class"]  # a token of the grid of a block, row by row; or the class token
Answer: TypeAlias = dict[str, Any]  # JSON
TOP, TOP_BY_BLOCK = 5, 3
WHOLE = 1 << 10  # patches of a block up to which its matrices are kept, so that all queries after the first are quick
MATRICES = 64 << 20  # bytes of them in a view
LARGEST = 127


class View:
    """A model on an image.

    Args:
        model: in evaluation mode.
        image: (channels, height, width), normalized, on the model's device.
        kept: for the factors of its blocks.

    Runs the model; no other thread may run it at the same time.
    """

    @torch.no_grad()
    def __init__(self, model: StudyModel, image: Tensor, kept: Kept[Factors]) -> None:
        assert isinstance(model.model, VisionModel)
        self.model, self.image = model, image
        self.network: VisionModel = model.model
        with module_outputs(self.network, {_parent(name) for name in attention_blocks(self.network)}) as outputs:
            start = time.perf_counter()
            calls = capture(self.network, image)
            self.logits = outputs[""][0].float().cpu()
            self.forward_ms = _since(start)
        self.shares: Kept[list[float]] = Kept(10_000)  # of confused pairs
        self.matrices: Kept[Tensor] = Kept(MATRICES, lambda matrix: matrix.numel() * matrix.element_size())
        self.heads: dict[Hashable, int] = {}  # by mechanism and width
        self.compared: dict[int, int] = {}  # heads whose queries can be compared, by block
        self.blocks = [with_kept_factors(block, kept) for block in calls]
        self.by_block = [self._prediction(block, outputs.get(_parent(block.name))) for block in calls]

    @property
    def memory(self) -> int:
        """Bytes of what is recorded, about."""
        parts = [part for block in self.blocks for part in block.parts]
        tensors = [t for part in parts for t in (part.q, part.k, part.v, part.place.context)]
        return sum(t.numel() * t.element_size() for t in tensors)

    @cached_property
    def names(self) -> list[str]:
        """A label for every output."""
        known = self.model.card.classes
        return [name.split(",")[0] for name in in_words(known)] or [f"class {i}" for i in range(len(self.logits))]

    def _prediction(self, block: BlockCall, tokens: Tensor | None) -> list[Answer] | None:
        """What the classifier makes of the tokens after a block; None if they do not fit it."""
        network = self.network
        fits = tokens is not None and tokens.ndim == 3 and tokens.shape[2] == network.num_features
        if not fits or block.prefix != network.num_prefix_tokens or tokens is None:
            return None
        logits = network.forward_head(network._finish((tokens, block.grid, block.prefix)))
        return self._likeliest(logits[0].float().cpu(), TOP_BY_BLOCK)

    def _likeliest(self, logits: Tensor, count: int) -> list[Answer]:
        shares, indices = logits.softmax(-1).nan_to_num().topk(min(count, len(logits)))
        pairs = zip(shares.tolist(), indices.tolist(), strict=True)
        return [{"label": self.names[i], "p": round(share, 5)} for share, i in pairs]

    def facts(self) -> Answer:
        """What the page shows before a patch is chosen."""
        mechanisms = list(dict.fromkeys(block.mechanism for block in self.blocks))
        return {
            "title": self.model.title, "note": self.model.warning, "mechanism": " + ".join(mechanisms),
            "size": list(self.image.shape[1:]), "pixels": list(self.image.shape[1:]),
            "forward_ms": round(self.forward_ms, 2), "classes_known": bool(self.model.card.classes),
            "blocks": [self._block_facts(block) for block in self.blocks],
            "top": self._likeliest(self.logits, TOP), "by_block": self.by_block, "rollout": self.rolled,
        }  # fmt: skip

    def _block_facts(self, block: BlockCall) -> Answer:
        return {
            "name": block.name, "mechanism": block.mechanism, "grid": list(block.grid),
            "key_grid": list(block.key_grid), "prefix": block.prefix,
            "heads": self._heads(block), "rows": block.has_rows, "local": has_local(block),
        }  # fmt: skip

    def _heads(self, block: BlockCall) -> int:
        """Heads of the rows of a block: those of the projection, or as many as the mechanism makes of them."""
        shape = (block.mechanism, *((part.core.num_heads, part.core.head_dim) for part in block.parts))
        if shape not in self.heads:
            own = sum(part.core.num_heads for part in block.parts)
            self.heads[shape] = len(block.rows([block.prefix])) if block.has_rows else own
        return self.heads[shape]

    def block(self, index: int) -> BlockCall:
        """A block by its number.

        Raises:
            InputError: there is none.
        """
        if not 0 <= index < len(self.blocks):
            raise InputError(f"block: expected a number from 0 to {len(self.blocks) - 1}; got {index}")
        return self.blocks[index]

    def row(self, index: int, query: Query) -> Answer:
        """The weights that a query gives to the keys of a block.

        Raises:
            InputError: there is no such block or query, or the block has no rows.
        """
        block, start = self._with_rows(index), time.perf_counter()
        row = block.rows([token_of(block, query)])[:, 0].cpu()
        return {**packed(row[:, block.prefix :], row[:, : block.prefix], block.key_grid), "ms": _since(start)}

    def _with_rows(self, index: int) -> BlockCall:
        block = self.block(index)
        if not block.has_rows:
            raise InputError(f"{block.mechanism} has no attention matrix to show; choose another block")
        return block

    def local(self, index: int, query: Query) -> Answer:
        """The weights of the local term of a block, mean over the channels of a head, on the grid of the queries.

        Raises:
            InputError: there is no such block or query, or the block has no local term.
        """
        block, start = self.block(index), time.perf_counter()
        token = token_of(block, query)
        if not has_local(block):
            raise InputError(f"{block.mechanism} has no local term to show; choose another view")
        weights = local_row(block, token)
        return {**packed(weights, weights[:, :0], block.grid), "ms": _since(start)}

    @property
    def rolled(self) -> Answer | None:
        """The grid and the blocks of the rollout; None if the blocks cannot be rolled up."""
        found = [block for block in self.blocks if block.has_rows]
        chosen = last_run(found) if found else []
        if not chosen or any(block.key_grid != block.grid for block in chosen):
            return None
        names = [block.name for block in self.blocks]
        first, last = (names.index(block.name) for block in (chosen[0], chosen[-1]))
        return {"grid": list(chosen[-1].grid), "from": first, "to": last}

    def rollout(self, query: Query) -> Answer:
        """Where the information of a token comes from over all blocks that share the last map; see `analysis.roll_up`.

        Raises:
            InputError: there is no such query, or the blocks cannot be rolled up.
        """
        start = time.perf_counter()
        run = last_run(with_rows(self.blocks))
        token, kept = token_of(run[-1], query), self.rolled is not None and _is_small(run[-1])
        row = (self.rolled_rows()[token] if kept else rolled_row(run, token))[None]
        prefix = run[-1].prefix
        return {**packed(row[:, prefix:], row[:, :prefix], run[-1].grid), "ms": _since(start)}

    def rolled_rows(self) -> Tensor:
        """The rollout of all tokens (N, N)."""
        return self.matrices.get("rollout", lambda: rolled_rows(last_run(with_rows(self.blocks))))

    def confusion(self, index: int, head: int | None, query: Query, centred: bool, score: float) -> Answer:
        """The patches that a block does not tell from a query; `head` None for the mean of all.

        Raises:
            InputError: there is no such block, head or query, or the block has no rows.
        """
        block, start = self._with_rows(index), time.perf_counter()
        token, heads = token_of(block, query), self._compared_heads(index)
        if head is not None and head >= heads:
            raise InputError(f"head: expected mean, or a number from 0 to {heads - 1}; got {head}")
        compared = Compared(head, centred)
        shares = self.shares.get((index, compared), lambda: confused_shares(block, compared))
        return {
            "grid": list(block.grid), "same": self._confused(index, token, compared, score),
            "share": shares[SCORES.index(score)], "thresholds": {"query": USUAL.query, "score": score},
            "centred": centred, "ms": _since(start),
        }  # fmt: skip

    def _compared_heads(self, index: int) -> int:
        if index not in self.compared:
            self.compared[index] = compared_heads(self.blocks[index])
        return self.compared[index]

    def _confused(self, index: int, token: int, compared: Compared, score: float) -> list[int]:
        block = self.blocks[index]
        if token < block.prefix or not _is_small(block):
            return confused_with(block, token, compared, score)
        pairs = self.matrices.get((index, compared), lambda: confused_pairs(block, compared))
        same: list[int] = torch.where(pairs[token - block.prefix] <= SCORES.index(score))[0].tolist()
        return same


def _is_small(block: BlockCall) -> bool:
    return block.grid[0] * block.grid[1] <= WHOLE


def token_of(block: BlockCall, query: Query) -> int:
    """The number of a query among the tokens of a block.

    Raises:
        InputError: there is no such query.
    """
    if query == "class":
        if not block.prefix:
            raise InputError(f"query: {block.name} has no class token; choose a patch")
        return 0
    count = block.grid[0] * block.grid[1]
    if not 0 <= query < count:
        raise InputError(f"query: expected class, or a patch from 0 to {count - 1}; got {query}")
    return block.prefix + query


def packed(weights: Tensor, prefix: Tensor, grid: Sequence[int]) -> Answer:
    """Weights (H, M) as the page reads them: whole numbers from -127 to 127, and per head what one of them is worth."""
    weights, prefix = weights.float().nan_to_num(), prefix.float().nan_to_num()
    numbers, scale = quantized(weights, LARGEST)
    return {
        "grid": list(grid), "heads": len(weights), "weights": b64encode(numbers.numpy().tobytes()).decode(),
        "scale": scale.tolist(), "prefix": prefix.tolist(), "min": weights.amin(1).tolist(),
        "max": weights.amax(1).tolist(), "sum": (weights.sum(1) + prefix.sum(1)).tolist(),
    }  # fmt: skip


def quantized(weights: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Weights (..., M) as whole numbers from -`steps` to `steps`, and what one of them is worth (...)."""
    scale = weights.abs().amax(-1) / steps
    smallest = torch.finfo(torch.float32).tiny
    return (weights / scale.clamp(min=smallest)[..., None]).round().to(torch.int8), scale


@contextmanager
def module_outputs(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """What the model itself, "", and modules of it return, by name, once it has run."""
    found: dict[str, Tensor] = {}
    modules, handles = dict(model.named_modules()), []
    for name in {"", *names}:
        handles.append(modules[name].register_forward_hook(lambda *call, name=name: found.update({name: call[2]})))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _since(start: float) -> float:
    """Milliseconds."""
    return round(1000 * (time.perf_counter() - start), 3)
