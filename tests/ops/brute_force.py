"""The operators by their definition: a full N x N matrix of weights, in float64, and how to compare with it.

Nothing here is shared with the library, and nothing is fast. Shape letters: B batch, N query tokens, M key
tokens, H heads, D head dim, E head dim of v.
"""

from collections.abc import Callable

import torch
from torch import Tensor

NS = (1, 49, 63, 196, 197)
HEAD_DIMS = (24, 32, 60, 64)
PHIS = ("identity", "relu", "leaky_relu", "elu1", "exp", "relu_affine")
EXACT = 1e-10  # float64 against float64, relative to the largest entry
SINGLE = 2e-5  # float32 against float64
HALVES = (torch.float16, torch.bfloat16)


def tokens(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random tokens; the seed is set before every test."""
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def qkv(batch: int, n: int, heads: int, dim: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Random q, k, v of one shape."""
    return [tokens(batch, n, heads, dim, dtype=dtype) for _ in range(3)]


def affine(heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """Random matrix and bias of relu_affine, one for every head."""
    return tokens(heads, dim, dim) / dim**0.5, tokens(heads, dim)


def some_keys(batch: int, m: int) -> Tensor:
    """A random mask in which the first key of every image counts and the last does not."""
    mask = torch.rand(batch, m) < 0.6
    mask[:, 0], mask[:, -1] = True, False
    return mask


def feature(x: Tensor, phi: str, matrix: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """phi(x) for x (B, N, H, D)."""
    if phi == "relu_affine":
        assert matrix is not None
        assert bias is not None
        heads = [x[:, :, h] @ matrix[h].T + bias[h] for h in range(x.shape[2])]
        x = torch.stack(heads, dim=2)
    formulas = {
        "identity": lambda: x,
        "relu": lambda: torch.where(x > 0, x, 0.0),
        "relu_affine": lambda: torch.where(x > 0, x, 0.0),
        "leaky_relu": lambda: torch.where(x > 0, x, 0.01 * x),
        "elu1": lambda: torch.where(x > 0, x + 1, torch.exp(torch.minimum(x, torch.zeros_like(x)))),
        "exp": lambda: torch.exp(x / 5),
    }
    return formulas[phi]()


def products(a: Tensor, b: Tensor) -> Tensor:
    """a_i . b_j, (B, N, H, D) and (B, M, H, D) -> (B, H, N, M)."""
    return torch.einsum("bnhd,bmhd->bhnm", a, b)


def attend(weights: Tensor, v: Tensor) -> Tensor:
    """(B, H, N, M) and (B, M, H, E) -> (B, N, H, E)."""
    return torch.einsum("bhnm,bmhe->bnhe", weights, v)


def keep_and_count(mask: Tensor | None, k: Tensor) -> tuple[Tensor, Tensor]:
    """The mask as numbers (B, 1, 1, M), and how many keys count (B, 1, 1, 1), one where there is none."""
    mask = torch.ones(k.shape[:2], dtype=torch.bool) if mask is None else mask
    keep = mask[:, None, None, :].to(k.dtype)
    return keep, keep.sum(-1, keepdim=True).clamp(min=1)


def softmax_weights(
    q: Tensor, k: Tensor, scale: float | None = None, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    keep, _ = keep_and_count(mask, k)
    scores = products(q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    powers = torch.exp(scores) * keep
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


def linear_weights(
    q: Tensor, k: Tensor, phi: str = "relu", *params: Tensor, eps: float = 1e-6, mask: Tensor | None = None
) -> Tensor:
    keep, count = keep_and_count(mask, k)
    scores = products(feature(q, phi, *params), feature(k, phi, *params)) * keep
    mean = scores.sum(-1, keepdim=True) / count
    floor = torch.where(mean < 0, -eps, eps).to(mean.dtype)
    return scores / (count * torch.where(mean.abs() < eps, floor, mean))


def inline_weights(
    q: Tensor,
    k: Tensor,
    phi: str = "identity",
    *params: Tensor,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    keep, count = keep_and_count(mask, k)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = products(feature(q, phi, *params), feature(k, phi, *params)) * keep
    mean = scores.sum(-1, keepdim=True) / count
    return ((scale / count) * (scores - mean) + 1 / count) * keep


def neighbours(
    v: Tensor, residual: Tensor, grid: tuple[int, int], prefix: int = 0, mask: Tensor | None = None
) -> Tensor:
    """The 3x3 residual, neighbour by neighbour: v (B, N, H, E), residual (B, H * E, 3, 3)."""
    height, width = grid
    batch, _, heads, dim = v.shape
    weights = residual.reshape(batch, heads, dim, 3, 3)
    keep = torch.ones(v.shape[:2], dtype=torch.bool) if mask is None else mask
    rows = [torch.zeros_like(v[:, 0]) for _ in range(prefix)]
    for y in range(height):
        for x in range(width):
            total = torch.zeros_like(v[:, 0])
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    if 0 <= y + dy < height and 0 <= x + dx < width:
                        j = prefix + (y + dy) * width + (x + dx)
                        total = total + weights[..., dy + 1, dx + 1] * v[:, j] * keep[:, j, None, None]
            rows.append(total)
    return torch.stack(rows, dim=1)


def gaussian(a: Tensor, b: Tensor) -> Tensor:
    """exp(-||a_i - b_j||^2 / 2) by the differences, (B, N, H, D) and (B, M, H, D) -> (B, H, N, M)."""
    difference = a[:, :, None] - b[:, None]  # B N M H D
    return torch.exp(-difference.square().sum(-1) / 2).permute(0, 3, 1, 2)


def newton(matrix: Tensor, step: Tensor, iterations: int) -> Tensor:
    """X_0 = step A, X <- 2 X - X A X, one matrix at a time."""
    results = []
    for a, s in zip(matrix.flatten(0, -3), step.flatten(), strict=True):
        x = s * a
        for _ in range(iterations):
            x = 2 * x - x @ a @ x
        results.append(x)
    return torch.stack(results).reshape(matrix.shape)


def largest_row_sum(matrix: Tensor) -> Tensor:
    """||A||_1 of each matrix, (..., m, m) -> (...)."""
    return matrix.abs().sum(-1).max(-1).values


def soft_weights(
    q: Tensor,
    landmarks: Tensor,
    normalized: bool,
    inverse: Callable[[Tensor], Tensor] = torch.linalg.inv,
    mask: Tensor | None = None,
) -> Tensor:
    """P A^+ P^T with the ridge of SOFT, or P D^-1/2 A^+ D^-1/2 P^T of SOFT++."""
    keep, _ = keep_and_count(mask, q)
    p, a = gaussian(q, landmarks), gaussian(landmarks, landmarks)
    if normalized:
        root = a.sum(-1) ** -0.5
        core = root[..., :, None] * inverse(a) * root[..., None, :]
    else:
        core = inverse(a + 0.01 * torch.eye(a.shape[-1], dtype=a.dtype))
    return p @ core @ p.transpose(-1, -2) * keep


def cotangent(out: Tensor) -> Tensor:
    """A fixed gradient of the output, exact in every dtype."""
    wave = torch.cos(torch.arange(out.numel(), dtype=torch.float64) * 1.7)
    return ((wave * 8).round() / 8).reshape(out.shape).to(out.dtype)


def value_and_grads(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The output, and the gradient of every input under `cotangent`."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, cotangent(out))]


def assert_close(got: Tensor, want: Tensor, tolerance: float, what: str = "output") -> None:
    """|got - want| <= tolerance * max |want|, everywhere."""
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} instead of {tuple(want.shape)}"
    assert got.isfinite().all(), f"{what} is not finite"
    size = max(want.abs().max().item(), 1e-3) if want.numel() else 1.0
    torch.testing.assert_close(
        got.double(), want.double(), rtol=0, atol=tolerance * size, msg=lambda text: f"{what}: {text}"
    )


def assert_same(
    function: Callable[..., Tensor],
    definition: Callable[..., Tensor],
    *inputs: Tensor,
    tolerance: float = EXACT,
) -> None:
    """`function` gives the output of `definition` (taken in float64) and its gradient for every input."""
    got = value_and_grads(function, *inputs)
    want = value_and_grads(definition, *(t.double() for t in inputs))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert_close(g, w, tolerance, "output" if i == 0 else f"gradient of input {i - 1}")


def assert_autocast_changes_nothing(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Output and gradients of float16 inputs are the same bits under autocast, eager and compiled."""
    plain = value_and_grads(function, *inputs)

    def under_autocast(*x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return function(*x)

    compiled = torch.compile(under_autocast, fullgraph=True, backend="aot_eager")
    for run in (under_autocast, compiled):
        for a, b in zip(plain, value_and_grads(run, *inputs), strict=True):
            assert a.isfinite().all()
            assert torch.equal(a, b)


def assert_half_follows_single(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Output and gradients in half precision are those of float32 on the same numbers, to one last bit."""
    half = value_and_grads(function, *inputs)
    single = value_and_grads(function, *(t.float() for t in inputs))
    for i, (h, s) in enumerate(zip(half, single, strict=True)):
        assert h.dtype == inputs[0].dtype
        assert h.isfinite().all()
        info = torch.finfo(h.dtype)
        bit = info.eps * (s.abs() + 1e-2 * s.abs().max() + info.smallest_normal)
        excess = ((h.float() - s).abs() / bit).max()
        assert excess <= 1, f"item {i} is off by {excess:.2f} last bits"
