"""Blocks one after the other. In compiled training each of their sums is one operator with the norm that follows it."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

from timm.models import checkpoint
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from sightline import backend
from sightline.layers.blocks import PreNormBlock
from sightline.layers.core import Grid, hooked
from sightline.ops.norm import add_norm


class Branch(NamedTuple):
    """What a branch of a block adds to the tokens, and a bias in it whose gradient is to come from that sum."""

    update: Tensor
    bias: Tensor | None


def run_blocks(
    blocks: Iterable[nn.Module],
    x: Tensor,
    grid: Grid,
    prefix: int = 0,
    key_mask: Tensor | None = None,
    *,
    save_memory: bool = False,
    take: Collection[int] = (),
) -> tuple[Tensor, dict[int, Tensor]]:
    """The tokens after the last block, and those after the blocks whose numbers are in `take`.

    Args:
        save_memory: keep only the input of every block for the backward pass.
    """
    where = (grid, prefix) if key_mask is None else (grid, prefix, key_mask)  # only attention to all tokens has a mask
    blocks, outputs = list(blocks), {}
    fused = not save_memory and backend.fused_norm(x)
    branch: Branch | None = None  # of the last block, if its sum is deferred
    for i, block in enumerate(blocks):
        if fused and _fuses(block):
            defer = i not in take and i + 1 < len(blocks) and _fuses(blocks[i + 1])
            x, branch = _advance(block, x, branch, where, defer)
            if not defer:
                x, branch = x + branch.update, None
        else:
            x = checkpoint(block, x, *where) if save_memory else block(x, *where)
        if i in take:
            outputs[i] = x
    return x, outputs


def _fuses(block: nn.Module) -> TypeGuard[PreNormBlock]:
    """Whether a block can be taken apart, for its norms to take the sums before them."""
    if not isinstance(block, PreNormBlock) or type(block).forward is not PreNormBlock.forward or _changed(block):
        return False
    norms = (block.norm1, block.norm2)
    return all(type(norm) is nn.LayerNorm and norm.bias is not None and not _changed(norm) for norm in norms)


def _changed(module: nn.Module) -> bool:
    """Whether a call does more than the `forward` of the class."""
    return hooked(module) or "forward" in module.__dict__


def _advance(
    block: PreNormBlock, x: Tensor, branch: Branch | None, where: tuple[Any, ...], defer: bool
) -> tuple[Tensor, Branch]:
    """`PreNormBlock.forward` of x plus a branch, all but the last sum; `defer` leaves that to the norm of the next."""
    attn, context = block.attn, None
    if branch is None:
        y = block.norm1(x)
    elif getattr(attn, "reads_context", False):
        x, y, context = _add_norm(x, branch, block.norm1, "sum" if block.raw_context else "norm")
    else:
        x, y = _add_norm(x, branch, block.norm1)
    if block.raw_context and context is None:
        context = x
    with _bias_apart(attn, "proj", "proj_drop", block.ls1, block.drop_path1) as bias:
        update = block.drop_path1(block.ls1(attn(y, *where, context=context)))
    x, y = _add_norm(x, Branch(update, bias), block.norm2)
    with _bias_apart(block.mlp if defer else None, "fc2", "drop2", block.ls2, block.drop_path2) as bias:
        update = block.drop_path2(block.ls2(block.feed_forward(y, where[0])))
    return x, Branch(update, bias)


def _add_norm(x: Tensor, branch: Branch, norm: nn.Module, view: str = "") -> tuple[Tensor, ...]:
    assert isinstance(norm, nn.LayerNorm)
    dtype = backend.compute_dtype(x)
    return add_norm(x, branch.update, norm.weight, norm.bias, norm.eps, dtype, bias=branch.bias, view=view)


@contextmanager
def _bias_apart(module: nn.Module | None, layer: str, drop: str, *after: nn.Module) -> Iterator[Tensor | None]:
    """The bias of a module's last layer, which gives it no gradient meanwhile; None if anything comes after it."""
    last, dropout = getattr(module, layer, None), getattr(module, drop, None)
    known = type(last) is nn.Linear and last.bias is not None and type(dropout) is nn.Dropout and dropout.p == 0
    if module is None or last is None or dropout is None or not known:
        yield None
        return
    same = all(isinstance(each, nn.Identity) for each in after)
    if not same or any(_changed(each) for each in (module, last, dropout, *after)):
        yield None
        return
    bias = last.bias
    with _reparametrize_module(last, {"bias": bias.detach()}):
        yield bias
