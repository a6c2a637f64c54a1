"""The weights of the local residual by kernels, as a layer makes them: from the tokens and two grouped layers."""

import torch
from torch import Tensor, nn

from sightline import backend as backends

if backends.TRITON_INSTALLED:
    from sightline.ops.inline.weights_operator import local_weights

kernel_takes = backends.local_weights


def weights_from_tokens(tokens: Tensor, fc1: nn.Conv1d, fc2: nn.Conv1d, heads: int) -> Tensor:
    """(B, N, C) -> (B, C, 3, 3), in the dtype of autocast if that is on."""
    kind = tokens.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype
    return local_weights(tokens, fc1.weight, fc1.bias, fc2.weight, fc2.bias, heads, dtype)[0]
