"""Tables of tokens, whose gradient is a matrix product in compiled training on a GPU.

Otherwise the gradient of every token is added to the row of its table by atomic additions, which wait for each other
where a quarter of a million tokens share a few rows.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline import backend
from sightline.ops.checks import full_precision
from sightline.ops.common.operator import Context

ONE_HOT = 2**27  # numbers of a one-hot matrix at most, 256 MB, if the number of tokens is known


class TokenTable(nn.Embedding):
    """`nn.Embedding`, with its arguments and state dict, whose tokens are looked up by `lookup`.

    Example: `TokenTable(257, 64)(torch.randint(257, (8, 1024)))` is (8, 1024, 64).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Tokens (...) -> (..., channels)."""
        if self.max_norm is None and not self.scale_grad_by_freq and not self.sparse:
            return lookup(self.weight, input, self.padding_idx)
        options = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return F.embedding(input, self.weight, *options)


def lookup(table: Tensor, tokens: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of a table by token, as `F.embedding` gives them.

    Args:
        table: (rows, channels).
        tokens: (...), integers from 0 to rows - 1.
        padding_idx: a row without a gradient.

    Returns:
        (..., channels). Where `backend.lookup_product` says so the gradient is a product: the same up to the order of
        float32 sums, but one that is not finite gets into all rows, and it has no gradient itself.
    """
    if not backend.lookup_product(table, tokens):
        return F.embedding(tokens, table, padding_idx)
    rows: Tensor = _Lookup.apply(table, tokens, None if padding_idx is None else padding_idx % table.shape[0])
    return rows


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(table: Tensor, tokens: Tensor, padding_idx: int | None) -> Tensor:
        return F.embedding(tokens, table)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor, int | None], output: Tensor) -> None:
        table, tokens, padding_idx = inputs
        ctx.options = (table.shape[0], padding_idx)
        ctx.save_for_backward(tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        (tokens,) = ctx.saved_tensors
        grad = grad.reshape(tokens.numel(), grad.shape[-1])
        with full_precision(grad.device):
            return table_gradient(tokens.flatten(), grad, *ctx.options), None, None


def table_gradient(tokens: Tensor, grad: Tensor, rows: int, padding_idx: int | None = None) -> Tensor:
    """Gradients (N, C) summed over equal tokens (N,) -> (rows, C), in float32 until the end; zero for `padding_idx`."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    step = ONE_HOT // rows
    if not statically_known_true(tokens.shape[0] > step):
        return _sums(tokens, grad, rows, padding_idx).to(grad.dtype)
    parts = zip(tokens.split(step), grad.split(step), strict=True)
    return torch.stack([_sums(*part, rows, padding_idx) for part in parts]).sum(0).to(grad.dtype)


def _sums(tokens: Tensor, grad: Tensor, rows: int, padding_idx: int | None) -> Tensor:
    """`table_gradient` in float32, by one product."""
    # Under autocast the gradient of a table is float32, for which tensor cores would round it to TF32. Three parts in
    # bfloat16 have all of its 24 bits, one-hot rows are exact, and the product adds and returns float32.
    parts = _parts(grad) if grad.dtype == torch.float32 else [grad]
    row = torch.arange(rows, dtype=tokens.dtype, device=tokens.device)
    if padding_idx is not None:
        row = row.where(row != padding_idx, -1)
    one_hot = (row[:, None] == tokens).to(parts[0].dtype)  # (rows, N): not (N, rows), as 257 rows are not aligned
    return _product(one_hot, torch.cat(parts, 1)).unflatten(1, (len(parts), grad.shape[1])).sum(1)


def _parts(x: Tensor) -> list[Tensor]:
    """Float32 as the exact sum of three tensors in bfloat16, which have 8 of its 24 bits each."""
    parts = []
    for _ in range(2):
        # Cut by its bits: compiled code may leave out a rounding to bfloat16 and back.
        part = (x.view(torch.int32) & -0x10000).view(torch.float32)
        parts.append(part.to(torch.bfloat16))
        x = x - part
    return [*parts, x.to(torch.bfloat16)]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in half precision, but with sums and a result in float32, for which torch has an operator on GPUs only."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
