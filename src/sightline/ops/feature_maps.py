"""Feature maps phi of linear and InLine attention, by name.

The names and the constant in `exp` follow the InLine paper; `elu1` is the map of Katharopoulos et al. (2020).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.ops.checks import accumulate_dtype, check_floating, reject
from sightline.util.errors import shown

Affine = tuple[Tensor, Tensor]  # weight (heads, d, d) or (d, d), bias (heads, d) or (d,)

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu1": lambda x: F.elu(x) + 1,
    "exp": lambda x: torch.exp(0.2 * x),
}
AFFINE_MAP = "relu_affine"
NAMES = (*FEATURE_MAPS, AFFINE_MAP)


def check_feature_map(
    operator: str, phi: str, affine: Affine | None, heads: int, dim: int, device: torch.device | None = None
) -> None:
    """Reject an unknown name, or an affine map without its matrix and bias for `heads` heads of `dim` channels."""
    if not isinstance(phi, str) or phi not in NAMES:
        reject(operator, f"phi={shown(phi)} is not a feature map; use one of {', '.join(NAMES)}")
    if (phi == AFFINE_MAP) != (affine is not None):
        given = f"phi={phi!r} with affine={None if affine is None else 'given'}"
        reject(operator, f"{given}; give affine=(weight, bias) with phi={AFFINE_MAP!r}, and only with it")
    if affine is None:
        return
    if not isinstance(affine, tuple | list) or len(affine) != 2:
        reject(operator, f"affine={shown(affine)}; give the tensors (weight, bias)")
    for name, tensor in zip(("affine[0]", "affine[1]"), affine, strict=True):
        check_floating(operator, name, tensor, device, "floating-point weights")
    shapes = tuple(tuple(t.shape) for t in affine)
    known = (((dim, dim), (heads, dim, dim)), ((dim,), (heads, dim)))
    if shapes[0] not in known[0] or shapes[1] not in known[1]:
        weights, biases = (" or ".join(map(str, pair)) for pair in known)
        reject(operator, f"affine has shapes {shapes}; give a weight of {weights} and a bias of {biases}")


def apply_feature_map(x: Tensor, phi: str, affine: Affine | None = None) -> Tensor:
    """phi(x) for x of shape (batch, tokens, heads, d)."""
    if phi == AFFINE_MAP:
        assert affine is not None
        weight, bias = (t.to(x.dtype) for t in affine)
        return F.relu(torch.einsum("...hd,hed->...he", x, weight.expand(x.shape[-2], -1, -1)) + bias)
    return FEATURE_MAPS[phi](x)


def hide(x: Tensor, hidden: Tensor | None) -> Tensor:
    """x with zeros where `hidden` (batch, tokens, 1, 1): a hidden token may hold anything, even inf."""
    return x if hidden is None else x.masked_fill(hidden, 0.0)


def key_features(k: Tensor, phi: str, affine: Affine | None, hidden: Tensor | None) -> Tensor:
    """phi(k), zero for hidden tokens; hidden from phi too, whose derivative could be infinite there."""
    return hide(apply_feature_map(hide(k, hidden), phi, affine), hidden)


def kernel_features(
    q: Tensor, k: Tensor, phi: str, affine: Affine | None, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, str]:
    """Queries, keys and the map that the kernels apply: relu_affine, a matrix product, is applied here."""
    if phi != AFFINE_MAP:
        return q, k, phi
    wide, hidden = accumulate_dtype(q.dtype), None if key_mask is None else ~key_mask[:, :, None, None]
    fq = apply_feature_map(q.to(wide), phi, affine).to(q.dtype)
    return fq, key_features(k.to(wide), phi, affine, hidden).to(k.dtype), "identity"
