"""InLine attention as a core: O(N d^2), with a local residual whose weights depend on the image.

Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import backend
from sightline.layers import prefix
from sightline.layers.adapt import Adapt
from sightline.layers.core import Core, Factors, Grid, Place, softmax_rows
from sightline.layers.feature_map import FeatureMap
from sightline.layers.mechanisms.agents import agent_factors, ask, ask_near, gather, mean_queries, near_rows
from sightline.ops import inline_attention
from sightline.ops.checks import accumulate_dtype
from sightline.ops.feature_maps import AFFINE_MAP
from sightline.ops.inline.product import mean_token
from sightline.ops.inline.projected import inline_from_tokens, prefers_tokens
from sightline.ops.inline.reference import local_residual
from sightline.util.errors import InputError

if backend.TRITON_INSTALLED:
    from sightline.ops.inline.layer import (
        NO_FAR,
        ResidualLayers,
        inline_from_packed,
        inline_from_parts,
        inline_projected,
        project_packed,
    )


class InlineCore(Core):
    """InLine attention.

    Args:
        phi: the feature map.
        residual: add the 3x3 neighborhood, which has one row in a sequence.
        hidden: units per head between the two layers that make its weights; 0 for the width of a head, as published.
        key_norm, temperature, head_map: learned changes of queries and keys, see `Adapt`. The temperature multiplies
            the queries.
        softmax_prefix: tokens without a position, such as a class token, attend by softmax, see `layers.prefix`.
        agents: mean queries, a square number of them, through which tokens attend by softmax in place of the even
            part of the weights, see `mechanisms.agents`; 0 for none. In a sequence any number.
        window: tokens along the side of windows; the softmax over the agents is then one over the keys of a query's own
            window too. 0 for none. Attention is that softmax at first: the part that is linear in the query has a gain
            per head that starts from zero.
    """

    feature_map: FeatureMap
    centred = True
    injective: bool | None = True
    joins_norm = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        phi: str = "identity",
        residual: bool = True,
        hidden: int = 0,
        key_norm: bool = False,
        temperature: bool = False,
        head_map: bool = False,
        softmax_prefix: bool = False,
        agents: int = 0,
        window: int = 0,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.phi = phi
        self.softmax_prefix = softmax_prefix
        self.feature_map = FeatureMap(phi, num_heads, self.head_dim)
        if not 0 <= hidden <= self.head_dim or (hidden and not residual):
            raise InputError(f"inline(hidden={hidden}): give 1 to {self.head_dim} units, with the residual")
        rows = 3 if length is None else 1
        self.residual = ResidualWeights(dim, num_heads, rows, hidden) if residual else None
        self.reads_context = residual
        self.by_one_operator = phi != AFFINE_MAP and (length is None or not residual)
        self.adapt: Adapt | None = None
        if length is None and math.isqrt(agents) ** 2 != agents:
            raise InputError(f"inline(agents={agents}): give a square number such as 49, or 0 for none")
        self.agents, self.sequence = agents, length is not None
        if window and not agents:
            raise InputError(f"inline(window={window}): windows need agents, as in inline(agents=49,window={window})")
        if window and phi != "identity":  # of another phi, a gain of the queries is not one of the weights
            raise InputError(f"inline(window={window},phi={phi}): windows need phi=identity; leave one of them out")
        self.window: Grid = (1 if self.sequence else window, window)
        self.far = FarKeys(num_heads, self.head_dim) if window else None
        self.gain = nn.Parameter(torch.zeros(num_heads, 1)) if window else None
        self.centred = not agents
        if softmax_prefix or agents:
            self.injective = None
        if key_norm or temperature or head_map:
            shift = phi != "identity" or head_map
            self.adapt = Adapt(
                num_heads, self.head_dim, key_norm=key_norm, temperature=temperature, head_map=head_map, shift=shift
            )
            self.injective = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        first = place.prefix if self.softmax_prefix else 0
        if not self.agents and not first:
            return self._mix(*self._adapted(q, k, place), v, place)
        if self._reads(q, place, first):
            readers = q[:, :first]
            if self.agents:
                readers = torch.cat([mean_queries(q, k, place, self.agents, self.sequence)[0], readers], 1)
            return self._mix(q, k, v, place, readers)
        out = self._mix(*self._adapted(q, k, place), v, place)
        if not self.agents:
            return prefix.by_softmax(out, q, k, v, place)
        gathered = gather(q, k, v, place, self.agents, self.sequence, first)
        if self.far is None:
            out = out + ask(q, gathered)
        else:
            out = out + ask_near(q, k, v, place, gathered, self.far(gathered.agents), self.window)
        return prefix.replace(out, gathered.first) if first else out

    def _reads(self, q: Tensor, place: Place, first: int) -> bool:
        """Whether kernels do the softmax of agents and first tokens."""
        if self.far is None:
            whole = self._whole(q, place)
        else:
            small = self.window[1] <= backend.WINDOW and first == place.prefix
            whole = small and not self.sequence and self._alone(q, place)
        return self.adapt is None and whole and backend.fused_readers(q, self.agents + first)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, place: Place, readers: Tensor | None = None) -> Tensor:
        if readers is not None or (self.residual is not None and self._whole(q, place)):
            context = place.context
            if torch.compiler.is_compiling():  # the graph has the tokens in this type already
                context = context.to(q.dtype)
            far = NO_FAR if readers is None or self.far is None else (self.far.offset, self.far.scale, self.gain)
            layers = None if self.residual is None else self.residual.layers()
            return inline_from_parts(
                q, k, v, context, layers, place.grid, place.prefix, self.phi, readers, self.agents, far, self.window[1]
            )  # fmt: skip
        # The operator adds the residual itself if the values lie on the grid of the queries.
        same = place.local is None
        out = inline_attention(
            q, k, v, phi=self.phi, affine=self.feature_map.affine(),
            residual=self.local_weights(place) if same else None,
            grid=place.grid, prefix=place.prefix, key_mask=place.key_mask,
        )  # fmt: skip
        return out if same else self.add_local(out, v, place)

    def rows(self, q: Tensor, k: Tensor, queries: Tensor, place: Place) -> Tensor:
        if self.far is None:
            return super().rows(q, k, queries, place)
        left, right = self._factors(*self._adapted(q, k, place), place)
        agents, there = mean_queries(q, k, place, self.agents, self.sequence)
        rows = left[:, :, queries] @ right.mT
        rows = rows + near_rows(q, k, queries, place, agents, there, self.far(agents), self.window)
        if not self.softmax_prefix or not place.prefix:
            return rows
        return torch.where((queries < place.prefix)[:, None], softmax_rows(q[:, queries], k, place), rows)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors | None:
        if self.far is not None:
            return None  # the weights of windows are not thin
        factors = self._factors(*self._adapted(q, k, place), place)
        if self.agents:
            left, right = agent_factors(q, k, place, self.agents, self.sequence)
            factors = torch.cat([factors[0], left], -1), torch.cat([factors[1], right], -1)
        return prefix.factors_by_softmax(factors, q, k, place) if self.softmax_prefix else factors

    def _factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        phi, counts = self.feature_map, place.counts(k)[:, None, :, None]  # B 1 M 1
        number = counts.sum(2, keepdim=True).clamp(min=1)
        fq = phi(q).transpose(1, 2)
        fk = phi.keys(k, place.hidden(k)).transpose(1, 2)
        centred = (fk - fk.sum(2, keepdim=True) / number) * counts * self.head_dim**-0.5
        even = counts.expand(*fk.shape[:3], 1).to(fk.dtype)
        return torch.cat([fq, torch.ones_like(fq[..., :1])], -1), torch.cat([centred, even], -1) / number

    def local_weights(self, place: Place) -> Tensor | None:
        if self.residual is None:
            return None
        return self.residual(place.context, place.key_mask if place.local is None else None)

    def local_term(self, v: Tensor, place: Place) -> Tensor | None:
        weights = self.local_weights(place)
        if weights is None:
            return None
        return F.pad(local_residual(place.local_values(v), weights, place.grid), (0, 0, 0, 0, place.prefix, 0))

    def from_tokens(self, x: Tensor, qkv: nn.Linear, place: Place) -> Tensor | None:
        softmax = self.softmax_prefix and place.prefix > 0
        if self.adapt is not None or self.agents:
            return None
        if self._by_kernels(x, place.context):
            if softmax:
                return None  # `forward` has the queries and keys that softmax needs
            layers = None if self.residual is None else self.residual.layers()
            whole = place.context is x
            x = x.to(backend.compute_dtype(x))  # once, for the projection and for the mean token
            packed, bias = project_packed(x, qkv, layers, self.phi)
            context = x if whole else place.context
            return inline_from_packed(
                packed, context, layers, self.num_heads, place.grid, place.prefix, self.phi, bias
            )  # fmt: skip
        if self.phi == "identity" and prefers_tokens(x, qkv):
            given = (qkv.weight, qkv.bias, self.num_heads)
            out = inline_from_tokens(x, *given, self.local_weights(place), place.grid, place.prefix)
            if not softmax:
                return out
            return torch.cat([prefix.from_tokens(x, *given, place.prefix), out[:, place.prefix :]], 1)
        return None

    def projected(self, x: Tensor, qkv: nn.Linear, proj: nn.Linear, place: Place) -> Tensor | None:
        return self._project_too(x, qkv, proj, place)

    def joined(
        self, x: Tensor, update: Tensor | None, norm: nn.LayerNorm, qkv: nn.Linear, proj: nn.Linear, place: Place
    ) -> Tensor | None:
        if self.dim > backend.FOLDED or norm.normalized_shape != (self.dim,):
            return None
        return self._project_too(x, qkv, proj, place, norm, update)

    def _project_too(
        self, x: Tensor, qkv: nn.Linear, proj: nn.Linear, place: Place,
        norm: nn.LayerNorm | None = None, update: Tensor | None = None,
    ) -> Tensor | None:  # fmt: skip
        """`projected`, and `joined` with a norm."""
        plain = type(qkv) is nn.Linear and type(proj) is nn.Linear and place.context is x and self.by_one_operator
        plain &= self.adapt is None and not self.agents and not (self.softmax_prefix and place.prefix)
        if not plain or not backend.whole_layer(x, qkv.weight, self.head_dim, place.prefix):
            return None
        layers = None if self.residual is None else self.residual.layers()
        return inline_projected(
            x, qkv, proj, layers, self.num_heads, place.grid, place.prefix, self.phi, norm, update
        )  # fmt: skip

    def _adapted(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """Queries and keys as the operator takes them."""
        scales: list[Tensor | None] = [self.gain]
        if self.adapt is not None:
            q, k = self.adapt(q, k, place)
            scales.append(self.adapt.scale())
        for scale in scales:
            if scale is not None:
                q = q * scale.to(q.dtype)
        return q, k

    def _whole(self, q: Tensor, place: Place) -> bool:
        """Whether one operator mixes all tokens of a map and adds the residual, whose weights it makes."""
        return self.residual is not None and self._alone(q, place)

    def _alone(self, q: Tensor, place: Place) -> bool:
        """Whether one operator mixes all tokens, with the residual if there is one."""
        return place.local is None and place.key_mask is None and self._by_kernels(q, place.context)

    def _by_kernels(self, x: Tensor, context: Tensor) -> bool:
        """Whether one operator makes the weights of the residual and mixes, for tokens x or a projection of them."""
        same = context is x or context.shape[:2] == x.shape[:2]
        return self.by_one_operator and same and backend.inline_layer(x, self.head_dim)


class FarKeys(nn.Module):
    """The keys (B, m, H, D) of agents next to near keys: a scale of the agents per head, and an offset by which a query
    decides how much comes from far away."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_heads, 1))
        self.offset = nn.Parameter(torch.zeros(num_heads, head_dim))

    def forward(self, agents: Tensor) -> Tensor:
        return agents * self.scale.to(agents.dtype) + self.offset.to(agents.dtype)


class ResidualWeights(nn.Module):
    """The mean token of an image -> its 3x3 weights per channel: two layers, each head on its own.

    With `rows=1` only the middle row of the weights is made, for a sequence of tokens; the others are zero.
    """

    def __init__(self, dim: int, num_heads: int, rows: int = 3, hidden: int = 0) -> None:
        super().__init__()
        hidden = hidden or dim // num_heads
        self.missing = dim // num_heads - hidden  # units per head
        self.dim = dim
        self.num_heads = num_heads
        self.rows = rows
        # Convolutions only by their parameters' shape, which is that of the published weights.
        self.fc1 = nn.Conv1d(dim, num_heads * hidden, 1, groups=num_heads)
        self.fc2 = nn.Conv1d(num_heads * hidden, 3 * rows * dim, 1, groups=num_heads)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, C) -> (B, C, 3, 3); masked tokens do not count in the mean."""
        if mask is None:
            mean = mean_token(tokens)
        else:
            total = tokens.masked_fill(~mask.unsqueeze(-1), 0).sum(1, dtype=accumulate_dtype(tokens.dtype))
            mean = (total / mask.sum(1, keepdim=True).clamp(min=1)).to(tokens.dtype)
        x = mean.view(-1, self.num_heads, self.dim // self.num_heads).permute(1, 2, 0)  # H D B
        x = self._per_head(self.fc1, x)
        x = x * (0.5 + 0.5 * torch.erf(x * 0.5**0.5))  # GELU; torch's own is slow on so few numbers
        x = self._per_head(self.fc2, x).permute(2, 0, 1).reshape(-1, self.dim, self.rows, 3)  # B C rows 3
        return x if self.rows == 3 else F.pad(x, (0, 0, 1, 1))

    def layers(self) -> "ResidualLayers":
        """The parameters, as kernels take them: as many hidden units as channels, of which some may be zero."""
        fc1, fc2, missing = self.fc1, self.fc2, self.missing
        assert fc1.bias is not None
        assert fc2.bias is not None
        if not missing:
            return ResidualLayers(fc1.weight, fc1.bias, fc2.weight, fc2.bias)
        units = (self.num_heads, -1)
        w1 = F.pad(fc1.weight.unflatten(0, units), (0, 0, 0, 0, 0, missing)).flatten(0, 1)
        b1 = F.pad(fc1.bias.unflatten(0, units), (0, missing)).flatten()
        return ResidualLayers(w1, b1, F.pad(fc2.weight, (0, 0, 0, missing)), fc2.bias)

    def _per_head(self, layer: nn.Conv1d, x: Tensor) -> Tensor:
        """(H, D, B) -> (H, E, B): a batched product, many times faster than a grouped convolution of one token."""
        weight = layer.weight.view(self.num_heads, -1, x.shape[1])
        assert layer.bias is not None
        return torch.baddbmm(layer.bias.view(self.num_heads, -1, 1), weight, x)
