"""The weights of the local residual by the kernels, as a layer has them: from the tokens and two grouped layers."""

import torch
from torch import Tensor, nn

from sightline import backend as backends
from sightline.ops import fused

NAME = "inline_attention"


def kernel_takes(tokens: Tensor, head_dim: int) -> bool:
    """Whether the kernels make the weights from these tokens (B, N, C)."""
    low, high = fused.HEAD_DIMS
    fits = tokens.dtype in fused.DTYPES and tokens.stride(2) == 1 and low <= head_dim <= high and tokens.numel() > 0
    return fits and backends.choose(NAME, tokens.device) == "triton"


def weights_from_tokens(tokens: Tensor, fc1: nn.Conv1d, fc2: nn.Conv1d, heads: int) -> Tensor:
    """(B, N, C) -> (B, C, 3, 3), in the type of autocast where that is on."""
    kind = tokens.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype
    return fused.local_weights(tokens, fc1.weight, fc1.bias, fc2.weight, fc2.bias, heads, dtype)[0]
