"""Linear attention with a feature map as a core: O(N d^2).

Transformers are RNNs (ICML 2020).
"""

import torch
from torch import Tensor

from sightline.layers import prefix
from sightline.layers.adapt import Adapt
from sightline.layers.core import Core, Factors, Place
from sightline.layers.feature_map import FeatureMap, quotient
from sightline.ops import linear_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.util.errors import InputError

SIGNED = ("identity", "leaky_relu")  # feature maps with negative values


class LinearCore(Core):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)).

    Args:
        phi: the feature map.
        key_norm, temperature, head_map: learned changes of queries and keys, see `Adapt`. A factor of the queries would
            cancel in the quotient, so the temperature is a power of their features, which must be positive: of
            exp(0.2 x) it is the factor of x.
        softmax_prefix: tokens without a position, such as a class token, attend by softmax, see `layers.prefix`.
    """

    feature_map: FeatureMap
    injective: bool | None = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        phi: str = "relu",
        key_norm: bool = False,
        temperature: bool = False,
        head_map: bool = False,
        softmax_prefix: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.softmax_prefix = softmax_prefix
        self.feature_map = FeatureMap(phi, num_heads, self.head_dim)
        self.adapt: Adapt | None = None
        if temperature and phi in SIGNED:
            raise InputError(f"linear(phi={phi},temperature=true): it has no powers of negative features; use phi=elu1")
        if key_norm or temperature or head_map:
            self.adapt = Adapt(
                num_heads, self.head_dim, key_norm=key_norm, temperature=temperature, head_map=head_map, shift=True
            )
            self.injective = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        out = self._mix(q, k, v, place)
        return prefix.by_softmax(out, q, k, v, place) if self.softmax_prefix else out

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        phi = self.feature_map
        if self.adapt is not None:
            q, k = self.adapt(q, k, place)
            if self.adapt.log_scale is not None:
                wide = accumulate_dtype(q.dtype)
                with full_precision(q.device):
                    fq, fk = self._features(q.to(wide), k.to(wide), place)
                return linear_attention(fq.to(q.dtype), fk.to(q.dtype), v, phi="identity", key_mask=place.key_mask)
        return linear_attention(q, k, v, phi=phi.phi, affine=phi.affine(), key_mask=place.key_mask)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        own_q, own_k = (q, k) if self.adapt is None else self.adapt(q, k, place)
        factors = quotient(*self._features(own_q, own_k, place), place.counts(k))
        return prefix.factors_by_softmax(factors, q, k, place) if self.softmax_prefix else factors

    def _features(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """phi(q), to the power of the temperature, and phi(k), zero where hidden."""
        phi, scale = self.feature_map, None if self.adapt is None else self.adapt.scale()
        fq = phi(q)
        return fq if scale is None else power(fq, scale.to(fq.dtype)), phi.keys(k, place.hidden(k))


def power(x: Tensor, exponent: Tensor) -> Tensor:
    """x ** exponent for x without negative entries; zero stays zero, with no gradient."""
    zero = x <= 0
    return torch.where(zero, 1.0, x).pow(exponent).masked_fill(zero, 0.0)
