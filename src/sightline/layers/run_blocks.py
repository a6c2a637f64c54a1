"""Blocks one after the other.

In compiled training each of their sums is one operator with the norm that follows it. In inference InLine attention of
few tokens is one operator with the norm before it and the residual sums before and after it.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from timm.models import checkpoint
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from sightline import backend
from sightline.layers.blocks import ENDS, NormedBlock, PostNormBlock, PreNormBlock
from sightline.layers.core import Grid
from sightline.ops.gelu import gelu_of_biased
from sightline.ops.norm import add_norm, normed_sum


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
    whole = not save_memory and key_mask is None and backend.whole_block(x)
    branch: Branch | None = None  # of the last block, if its sum is deferred
    for i, block in enumerate(blocks):
        if fused and isinstance(block, PostNormBlock) and block.separable():
            x, branch = _post_norm(block, _summed(x, branch), where), None
        elif fused and _separable(block):
            defer = i not in take and i + 1 < len(blocks) and _separable(blocks[i + 1])
            x, branch = _advance(block, x, branch, where, defer)
            if not defer:
                x, branch = x + branch.update, None
        elif whole and (added := _attention_added(block, x, branch, grid, prefix)) is not None:
            assert isinstance(block, PreNormBlock)
            x, branch = added, Branch(block.mlp_update(added, grid), None)
        else:
            x, branch = _summed(x, branch), None
            x = checkpoint(block, x, *where) if save_memory else block(x, *where)
        if i in take:
            x, branch = _summed(x, branch), None
            outputs[i] = x
    return _summed(x, branch), outputs


def _summed(x: Tensor, branch: Branch | None) -> Tensor:
    return x if branch is None else x + branch.update


def _attention_added(block: nn.Module, x: Tensor, branch: Branch | None, grid: Grid, prefix: int) -> Tensor | None:
    """The tokens after a block's attention and its sum, before the MLP; None if no operator does this."""
    if not isinstance(block, PreNormBlock):
        return None
    return block.attention_added(x, None if branch is None else branch.update, grid, prefix)


def _separable(block: nn.Module) -> TypeGuard[PreNormBlock]:
    return isinstance(block, PreNormBlock) and block.separable()


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
    with _bias_apart(block, "attn") as bias:
        update = block.drop_path1(block.ls1(attn(y, *where, context=context)))
    later = block.bias_before_gelu()
    x, y, *parts = _add_norm(x, Branch(update, bias), block.norm2, later=later)
    with _bias_apart(block, "mlp" if defer else "") as bias:
        update = block.feed_forward(y, where[0]) if later is None else _feed_forward(block.mlp, y, *parts)
        update = block.drop_path2(block.ls2(update))
    return x, Branch(update, bias)


def _post_norm(block: PostNormBlock, x: Tensor, where: tuple[Any, ...]) -> Tensor:
    """`PostNormBlock.forward`."""
    with _bias_apart(block, "attn") as bias:
        update = block.drop_path1(block.attn(x, *where))
    later = block.bias_before_gelu()
    x, y, *parts = _normed_sum(x, Branch(update, bias), block.norm1, backend.compute_dtype(x), later)
    with _bias_apart(block, "mlp") as bias:
        update = block.drop_path2(block.mlp(y) if later is None else _feed_forward(block.mlp, y, *parts))
    (x,) = _normed_sum(x, Branch(update, bias), block.norm2, None)
    return x


def _feed_forward(mlp: Any, x: Tensor, parts: Tensor) -> Tensor:
    """`mlp(x)`, with the gradient of the bias before its GELU from the norm before it, in `parts`."""
    hidden = F.linear(x, mlp.fc1.weight, mlp.fc1.bias.detach())
    hidden = gelu_of_biased(hidden, parts, tanh=getattr(mlp.act, "approximate", "none") == "tanh")
    out: Tensor = mlp.drop2(mlp.fc2(mlp.norm(mlp.drop1(hidden))))
    return out


def _normed_sum(
    x: Tensor, branch: Branch, norm: nn.Module, dtype: torch.dtype | None, later: Tensor | None = None
) -> tuple[Tensor, ...]:
    assert isinstance(norm, nn.LayerNorm)
    return normed_sum(x, branch.update, norm.weight, norm.bias, norm.eps, dtype, bias=branch.bias, later=later)


def _add_norm(
    x: Tensor, branch: Branch, norm: nn.Module, view: str = "", later: Tensor | None = None
) -> tuple[Tensor, ...]:
    assert isinstance(norm, nn.LayerNorm)
    dtype, given = backend.compute_dtype(x), (x, branch.update, norm.weight, norm.bias, norm.eps)
    return add_norm(*given, dtype, bias=branch.bias, view=view, later=later)


@contextmanager
def _bias_apart(block: NormedBlock, branch: str) -> Iterator[Tensor | None]:
    """Detach the bias that ends the branch and yield it, so its gradient can come from the sum; yield None if there is
    none, or no branch."""
    if not branch or not block.ends_in_bias(branch):
        yield None
        return
    layer = getattr(getattr(block, branch), ENDS[branch][0])
    bias = layer.bias
    with _reparametrize_module(layer, {"bias": bias.detach()}):
        yield bias
