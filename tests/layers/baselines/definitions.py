"""The baselines by their papers: a full N x M matrix of weights for every head, in float64, and what is added to it.

Nothing here is shared with the library, and nothing is fast. Masked keys are left out by the definition itself: what
they hold is never touched. Shape letters: B batch, N query tokens, M key tokens, H heads, D head dim, C = H * D.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.brute_force import attend, keep_and_count, products, softmax_weights

Grid = tuple[int, int]
# With options that the definitions below take in full: exact pseudo-inverses, tables of their own size.
BASELINES = {
    "linformer": "linformer(rank=6,side=4)",
    "performer": "performer(features=11)",
    "nystromformer": "nystromformer(landmarks=5,iterations=40,kernel=3)",
    "hydra": "hydra",
    "efficient": "efficient",
    "linear_angular": "linear_angular",
    "enhanced": "enhanced(scales=2,kernel=3)",
    "focused": "focused",
    "hedgehog": "hedgehog(kernel=3)",
    "rala": "rala(gate=true,kernel=3)",
    "mala": "mala(kernel=3)",
    "ttt": "ttt(project=true,key_norm=true,kernel=3)",
}
GRID = (4, 4)


def over_sum(scores: Tensor, mask: Tensor | None, k: Tensor) -> Tensor:
    """Scores (B, H, N, M) over their sum; the mean is kept 1e-6 from zero."""
    keep, count = keep_and_count(mask, k)
    scores = scores * keep
    return scores / (count * (scores.sum(-1, keepdim=True) / count).clamp(min=1e-6))


def length(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True).sqrt()


def unit(x: Tensor) -> Tensor:
    """x / |x|, zero for zero."""
    return x / torch.where(length(x) == 0, 1.0, length(x))


def linformer(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    keep = torch.ones(k.shape[:2], dtype=torch.bool) if mask is None else mask
    rows = []
    for b in range(len(q)):
        e, f = (t.flatten(1) * keep[b, prefix:] for t in (core.key_table, core.value_table))
        e, f = (torch.block_diag(torch.eye(prefix, dtype=q.dtype), t) for t in (e, f))  # prefix tokens are themselves
        short = torch.einsum("rm,mhd->rhd", e, k[b])
        heads = [q[b, :, h] @ short[:, h].T / q.shape[-1] ** 0.5 for h in range(q.shape[2])]
        counts = torch.cat([keep[b, :prefix], torch.ones(len(f) - prefix, dtype=torch.bool)])
        rows.append(torch.stack([(s.exp() * counts) / (s.exp() * counts).sum(-1, keepdim=True) @ f for s in heads]))
    return torch.stack(rows) * keep[:, None, None, :]


def performer(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    def phi(x: Tensor) -> Tensor:
        x = x / x.shape[-1] ** 0.25
        return torch.stack([torch.exp(x @ w - x.square().sum(-1) / 2) for w in core.projection.double()], -1)

    return over_sum(products(phi(q), phi(k)), mask, k)


def segments(x: Tensor, number: int) -> Tensor:
    """Means (m, D) of the tokens (n, D) in their order; the segments differ by one token at most."""
    number = min(number, len(x))
    ends = [math.ceil(i * len(x) / number) for i in range(number + 1)]
    return torch.stack([x[a:b].mean(0) for a, b in pairwise(ends)])


def nystromformer(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    def softmax(a: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(a @ b.T / q.shape[-1] ** 0.5, -1)

    keep = torch.ones(k.shape[:2], dtype=torch.bool) if mask is None else mask
    out = torch.zeros(len(q), q.shape[2], q.shape[1], k.shape[1], dtype=q.dtype)
    for b in range(len(q)):
        for h in range(q.shape[2]):
            keys = k[b, keep[b], h]
            asking = q[b, keep[b], h] if q.shape[1] == k.shape[1] else q[b, :, h]
            number = min(core.landmarks, q.shape[1], k.shape[1])
            lq, lk = segments(asking, number), segments(keys, number)
            row = softmax(q[b, :, h], lk) @ torch.linalg.pinv(softmax(lq, lk)) @ softmax(lq, keys)
            out[b, h][:, keep[b]] = row
    return out


def hydra(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    """Linear attention with C heads of one channel each, on tokens of length one, without a row sum."""
    keep, _ = keep_and_count(mask, k)
    fq, fk = (unit(t.flatten(2)).unsqueeze(-1) for t in (q, k))  # B N C 1
    return products(fq, fk) * keep


def efficient(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    keep, _ = keep_and_count(mask, k)
    over_channels = q.exp() / q.exp().sum(-1, keepdim=True)
    powers = k.exp() * keep[:, 0, 0, :, None, None]
    return products(over_channels, powers / powers.sum(1, keepdim=True))


def linear_angular(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    return over_sum(0.5 + products(unit(q), unit(k)) / math.pi, mask, k)


def focused(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    def phi(x: Tensor) -> Tensor:
        x = torch.where(x > 0, x, 0.0)
        return length(x) * unit(x**core.power)

    return over_sum(products(phi(q), phi(k)), mask, k)


def elu1(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def hedgehog(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    def phi(x: Tensor, matrices: Tensor) -> Tensor:
        heads = [x[:, :, h] @ matrix.T for h, matrix in enumerate(matrices)]
        powers = torch.stack([torch.cat([y.exp(), (-y).exp()], -1) for y in heads], 2)
        return powers / powers.sum(-1, keepdim=True)

    scores = products(phi(q, core.query_map), phi(k, core.key_map)) * keep_and_count(mask, k)[0]
    return scores / scores.sum(-1, keepdim=True)


def rala(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    keep, count = keep_and_count(mask, k)
    fq, fk = elu1(q), elu1(k)
    asking = fq if mask is None else fq * mask[:, :, None, None]
    mean = asking.sum(1, keepdim=True) / count  # as many queries as keys
    shares = (products(mean, fk) / q.shape[-1] ** 0.5).exp() * keep
    return over_sum(products(fq, fk) * shares / shares.sum(-1, keepdim=True) * count, mask, k)


def mala(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    keep, count = keep_and_count(mask, k)
    scores = products(elu1(q), elu1(k)) / q.shape[-1] ** 0.5 * keep
    z = scores.sum(-1, keepdim=True) / count
    return ((1 + 1 / z) * scores - z) * keep / count


def ttt(core: Any, q: Tensor, k: Tensor, v: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    """One step of the network of every image and head on the keys that count, by autograd; (B, N, H, D)."""
    if core.near_keys is not None:
        seen = q if mask is None else torch.where(mask[:, :, None, None], q, 0.0)
        parts = ((q, seen, core.near_queries), (k, k, core.near_keys))
        near = [convolve(x, conv.conv.weight, None, grid, prefix) for _, x, conv in parts]
        q, k = (torch.cat([x[:, :prefix], (x + y)[:, prefix:]], 1) for (x, _, _), y in zip(parts, near, strict=True))
    matrices = [m for m in (core.inner_value, core.inner_gate, core.inner_project) if m is not None]
    out = torch.zeros_like(q)
    for b in range(len(q)):
        keep = torch.ones(k.shape[1], dtype=torch.bool) if mask is None else mask[b]
        for h in range(q.shape[2]):
            keys, values = k[b, keep, h], v[b, keep, h]
            if core.key_norm:
                keys = (keys - keys.mean(0)) / (keys.var(0, unbiased=False) + 1).sqrt()
            own = [m[h].detach().requires_grad_() for m in matrices]
            loss = -(inner(keys, *own) * values).sum(-1).mean() / q.shape[-1] ** 0.5
            steps = torch.autograd.grad(loss, own)
            new = [m - g / (g.norm(dim=0) + 1) for m, g in zip(own, steps, strict=True)]
            out[b, :, h] = inner(q[b, :, h], *new)
    return out.detach()


def inner(x: Tensor, value: Tensor, gate: Tensor, project: Tensor | None = None) -> Tensor:
    out = (x @ value) * (x @ gate) * torch.sigmoid(x @ gate)
    return out if project is None else out @ project


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, grid: Grid, prefix: int) -> Tensor:
    """Depthwise, weight (C, 1, k, k): x (B, p + h * w, H, D); each prefix token is a map of one place."""

    def of(part: Tensor, size: Grid) -> Tensor:
        maps = part.flatten(2).transpose(1, 2).unflatten(-1, size)
        done = F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight))
        return done.flatten(2).transpose(1, 2).unflatten(-1, x.shape[2:])

    return torch.cat([*(of(x[:, i : i + 1], (1, 1)) for i in range(prefix)), of(x[:, prefix:], grid)], 1)


def aggregate(part: Any, x: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    """The tokens of a scale: a depthwise convolution, then a matrix for every head."""
    if mask is not None and mask.shape[1] == x.shape[1]:
        x = torch.where(mask[:, :, None, None], x, 0.0)
    near = convolve(x, part.depthwise.weight, None, grid, prefix)
    matrices = part.pointwise.weight.squeeze(-1).squeeze(-1).chunk(x.shape[2])
    return torch.stack([near[:, :, h] @ matrix.T for h, matrix in enumerate(matrices)], 2)


def enhanced(core: Any, q: Tensor, k: Tensor, grid: Grid, prefix: int, mask: Tensor | None) -> Tensor:
    tokens = [(q, k)] + [
        (aggregate(s.parts[0], q, grid, prefix, mask), aggregate(s.parts[1], k, grid, prefix, mask))
        for s in core.scales
    ]
    return torch.cat([over_sum(products(a.clamp(min=0), b.clamp(min=0)), mask, b) for a, b in tokens], 1)


WEIGHTS: dict[str, Callable[..., Tensor]] = {
    "linformer": linformer,
    "performer": performer,
    "nystromformer": nystromformer,
    "hydra": hydra,
    "efficient": efficient,
    "linear_angular": linear_angular,
    "enhanced": enhanced,
    "focused": focused,
    "hedgehog": hedgehog,
    "rala": rala,
    "mala": mala,
    "softmax": lambda core, q, k, grid, prefix, mask: softmax_weights(q, k, mask=mask),
}


def local_weight(core: Any) -> tuple[Tensor, Tensor | None] | None:
    """The depthwise weights (C, 1, k, k) and bias of what is added to the mixed values."""
    name, heads, dim = type(core).__name__, core.num_heads, core.head_dim
    if name == "FocusedCore":
        conv = core.neighbours.conv
        return torch.cat([conv.weight] * heads), torch.cat([conv.bias] * heads)
    if core.neighbours is None:
        return None
    if len(core.neighbours.conv.weight) == heads * dim:
        return core.neighbours.conv.weight, None
    return torch.stack([core.neighbours.conv.weight[c // dim] for c in range(heads * dim)]), None


def output(
    name: str,
    core: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: Grid,
    prefix: int = 0,
    mask: Tensor | None = None,
    context: Tensor | None = None,
) -> Tensor:
    """What the mechanism gives for tokens of one grid: (B, N, H, D)."""
    if mask is not None:
        k, v = (torch.where(mask[:, :, None, None], t, 0.0) for t in (k, v))
    if name == "ttt":
        return ttt(core, q, k, v, grid, prefix, mask)
    weights = WEIGHTS[name](core, q, k, grid, prefix, mask)
    if name == "enhanced":
        first, *others = weights.chunk(1 + len(core.scales), 1)
        out = attend(first, v)
        for scale, part in zip(core.scales, others, strict=True):
            mixed = attend(part, aggregate(scale.parts[2], v, grid, prefix, mask))
            out = out + (mixed.flatten(2) @ scale.fuse.weight.T).view_as(out)
        return out
    out = attend(weights, v.reshape(*v.shape[:2], weights.shape[1], -1)).view_as(q)
    if (local := local_weight(core)) is not None:
        near = convolve(v, *local, grid, prefix)
        out = torch.cat([out[:, :prefix], out[:, prefix:] + near[:, prefix:]], 1)
    if getattr(core, "gate_weight", None) is not None and context is not None:
        out = out * (context @ core.gate_weight.T + core.gate_bias).view_as(out)
    return out


def lively(core: nn.Module) -> nn.Module:
    """Weights that matter, in float64."""
    for parameter in core.parameters():
        nn.init.normal_(parameter, std=0.4)
    return core.double()
