"""Operators of other libraries to compare with: (B, N, H, D) queries, keys and values in, mixed values out."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

from sightline.bench.candidates import MissingError

FLEX, FLASH_BLA = "flex_attention", "flash_bla"
Peer = Callable[[Tensor, Tensor, Tensor], Tensor]


def load_flex() -> Peer:
    """torch's FlexAttention: softmax attention, to be compiled."""
    attention: Any = import_module("torch.nn.attention.flex_attention").flex_attention

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return out.transpose(1, 2)

    return call


def load_flash_bla() -> Peer:
    """Normalized linear attention of flash-bidirectional-linear-attention, which has no feature map of its own.

    Raises:
        MissingError: it is not installed.
    """
    try:
        attention: Any = import_module("flash_bla.ops.linear_attn.fused").linear_attention
    except ImportError as error:
        address = "https://github.com/fla-org/flash-bidirectional-linear-attention"
        raise MissingError(f"flash_bla is not installed; see {address}") from error

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q.relu().transpose(1, 2), k.relu().transpose(1, 2), v.transpose(1, 2))
        return out.transpose(1, 2)

    return call


PEERS: dict[str, Callable[[], Peer]] = {FLEX: load_flex, FLASH_BLA: load_flash_bla}
