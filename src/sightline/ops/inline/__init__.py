"""InLine attention: injective linear attention with a local residual."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import (
    Grid,
    as_number,
    check_grid,
    check_key_mask,
    check_packed,
    check_residual,
    check_same,
    check_tokens,
    full_precision,
    is_whole,
    lengths,
    per_sequence,
    reject,
)
from sightline.ops.feature_maps import Affine, check_feature_map
from sightline.ops.inline import reference
from sightline.util.errors import shown

NAME = "inline_attention"
IMPLEMENTATIONS = {"torch": reference.inline_attention}
if backends.TRITON_INSTALLED:
    from sightline.ops.inline import triton

    IMPLEMENTATIONS["triton"] = triton.inline_attention


def inline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    phi: str = "identity",
    residual: Tensor | None = None,
    grid: Grid | None = None,
    prefix: int = 0,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    grids: Sequence[Grid] | None = None,
    affine: Affine | None = None,
    backend: str | None = None,
) -> Tensor:
    """InLine attention, linear in the number of tokens: rows sum to one, weights may be negative.

    Args:
        q: (batch, tokens, heads, head_dim), any strides.
        k, v: (batch, key tokens, heads, head_dim); v may have a different head dim.
        phi: identity, relu, leaky_relu, elu1, exp or relu_affine.
        residual: (batch, channels, 3, 3): weights of the 3x3 neighborhood of v added to every token after
            `prefix`.
        grid: (height, width) of the tokens after `prefix`; needed with `residual`.
        prefix: leading tokens (class token) that take part in the global term but not in the residual.
        scale: factor on the scores; head_dim ** -0.5 by default.
        key_mask: (batch, key tokens) booleans, true where the key counts; masked tokens are left out of
            the residual too. A row without any key gives zero.
        cu_seqlens: packed form: q, k, v are (1, total, heads, head_dim) and this is [0, n1, n1 + n2, ...];
            `grids` then holds (height, width) of every image, and `residual` one row per image.
        affine: (weight, bias) of relu_affine: relu(weight x + bias), weight (d, d) or (heads, d, d).
        backend: "auto", "triton" or "torch"; see `sightline.backend`. The kernels take head dims 8 to 128.

    Returns:
        (batch, tokens, heads, head_dim of v), in the dtype of q; sums are taken in float32.

    Example:
        >>> q = torch.randn(2, 197, 6, 32)
        >>> inline_attention(q, q, q, residual=torch.randn(2, 192, 3, 3), grid=(14, 14), prefix=1).shape
        torch.Size([2, 197, 6, 32])
    """
    check_tokens(NAME, q=q, k=k, v=v)
    check_same(NAME, 3, q=q, k=k)
    check_same(NAME, 1, k=k, v=v)
    check_key_mask(NAME, key_mask, k)
    check_feature_map(NAME, phi, affine, q.shape[2], q.shape[3], q.device)
    if not is_whole(prefix) or prefix < 0:
        reject(NAME, f"prefix={shown(prefix)}; give the number of leading tokens, zero or more")
    chosen = backends.choose(NAME, q.device, backend, backends.obstacle(NAME, q, k, v))
    run = IMPLEMENTATIONS[chosen]
    scale = q.shape[-1] ** -0.5 if scale is None else as_number(NAME, "scale", scale)
    if residual is not None:
        check_same(NAME, 1, q=q, v=v)

    def one(q: Tensor, k: Tensor, v: Tensor, **image: Any) -> Tensor:
        with full_precision(q.device):
            return run(q, k, v, phi, scale, prefix=prefix, affine=affine, **image)

    if cu_seqlens is None:
        if residual is not None:
            check_residual(NAME, residual, q.shape[0], v)
            check_grid(NAME, grid, q.shape[1], prefix)
        return one(q, k, v, residual=residual, grid=grid, key_mask=key_mask)

    check_packed(NAME, key_mask, q=q, k=k, v=v)
    check_same(NAME, 1, q=q, k=k)
    sizes = lengths(NAME, cu_seqlens, q.shape[1])
    images: list[dict[str, object]] = [{"residual": None, "grid": None, "key_mask": None} for _ in sizes]
    if residual is not None:
        check_residual(NAME, residual, len(sizes), v)
        if not isinstance(grids, Sequence) or len(grids) != len(sizes):
            reject(NAME, f"grids={shown(grids)} for {len(sizes)} packed images; give one (height, width) each")
        for i, (size, image_grid) in enumerate(zip(sizes, grids, strict=True)):
            check_grid(NAME, image_grid, size, prefix, what=f"grids[{i}]")
            images[i].update(residual=residual[i : i + 1], grid=image_grid)
    if chosen == "triton":
        return triton.inline_attention(
            q, k, v, phi, scale, residual, None, prefix, None, affine, cu_seqlens, sizes, grids
        )  # fmt: skip
    return per_sequence(one, [sizes] * 3, (q, k, v), images)


__all__ = ["inline_attention"]
