"""Attention operators as candidates of a benchmark: their inputs, how each is called, and the bytes it must move.

Queries, keys and values are views of one packed tensor, as a projection creates them, for every candidate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sightline import backend as backends
from sightline.bench.cases import OpCase
from sightline.layers.core import Core, Place
from sightline.layers.spec import Spec
from sightline.ops import inline_attention, linear_attention, soft_attention, softmax_attention
from sightline.util.errors import InputError

SDPA, MOVE = "sdpa", "move"
LANDMARKS = 49  # default for soft and soft_norm
SHARED_QK = ("soft", "soft_norm")  # queries are their own keys


@dataclass(frozen=True)
class OpCandidate:
    """A way to compute a mechanism: `backend` "triton" or "torch"; `spec` None for the baselines `sdpa` and `move`."""

    name: str
    spec: Spec | None
    backend: str | None = None
    compiled: bool = False


@dataclass(frozen=True)
class Operands:
    """Inputs of one call, and the gradient of its output. `extra` holds further inputs of a mechanism."""

    q: Tensor
    k: Tensor
    v: Tensor
    extra: dict[str, Tensor]
    grad: Tensor
    case: OpCase
    grid: Tensor  # an empty tensor of the grid's shape, which torch.compile can treat as dynamic

    @property
    def leaves(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k, "v": self.v, **self.extra}

    def images(self, indices: Sequence[int]) -> "Operands":
        """Some images in float32; enough for a check, as images do not influence each other."""
        pick = {name: t.detach()[list(indices)].float().requires_grad_() for name, t in self.leaves.items()}
        q, k, v = (pick.pop(name) for name in "qkv")
        return Operands(q, k, v, pick, self.grad[list(indices)].float(), self.case, self.grid)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.leaves.values(), self.grad))


Function = Callable[[Operands], Tensor]


def make_operands(case: OpCase, spec: Spec, dtype: torch.dtype, device: torch.device | str, seed: int) -> Operands:
    """Random inputs of a case; mechanisms share them as far as they take the same."""
    shape = (case.batch, case.tokens, case.heads, case.dim)
    generator = None if str(device) == "meta" else torch.Generator(device).manual_seed(seed)

    def normal(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*size, device=device, generator=generator) * scale).to(dtype)

    packed = normal(case.batch, case.tokens, 3, case.heads, case.dim)
    grad = normal(*shape)
    extra: dict[str, Tensor] = {}
    options = dict(spec.options)
    if spec.name == "inline" and options.get("residual", True):
        extra["residual"] = normal(case.batch, case.channels, 3, 3, scale=1 / 3)
    if spec.name in SHARED_QK:
        count = int(options.get("landmarks", 0)) or LANDMARKS
        extra["landmarks"] = normal(case.batch, count, case.heads, case.dim, scale=case.dim**-0.25)
        packed = packed * case.dim**-0.25
    q, k, v = (part.detach().requires_grad_() for part in packed.unbind(2))
    extra = {name: t.requires_grad_() for name, t in extra.items()}
    return Operands(q, k, v, extra, grad, case, torch.empty(case.grid, device="meta"))


def _inline(x: Operands, backend: str | None, phi: str = "identity", residual: bool = True) -> Tensor:
    if not residual:
        return inline_attention(x.q, x.k, x.v, phi=phi, backend=backend)
    height, width = x.grid.shape
    weights = x.extra["residual"]
    return inline_attention(
        x.q, x.k, x.v, phi=phi, backend=backend, residual=weights, grid=(height, width), prefix=x.case.prefix
    )


def _linear(x: Operands, backend: str | None, phi: str = "relu") -> Tensor:
    return linear_attention(x.q, x.k, x.v, phi=phi, backend=backend)


def _softmax(x: Operands, backend: str | None) -> Tensor:
    return softmax_attention(x.q, x.k, x.v, backend=backend)


def _soft(normalized: bool) -> Callable[..., Tensor]:
    def call(x: Operands, backend: str | None, iterations: int = 20, **_: object) -> Tensor:
        landmarks = x.extra["landmarks"]
        return soft_attention(x.q, x.v, landmarks, normalized=normalized, iterations=iterations, backend=backend)

    return call


# Mechanism -> its operator and how to call it. Others are timed as modules, including what they compute from tokens.
OPERATORS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "softmax": ("softmax_attention", _softmax),
    "linear": ("linear_attention", _linear),
    "inline": ("inline_attention", _inline),
    "soft": ("soft_attention", _soft(False)),
    "soft_norm": ("soft_attention", _soft(True)),
}


def candidates(
    mechanism: str, device: torch.device, backend: Sequence[str] = (), compiled: bool = False
) -> list[OpCandidate]:
    """The implementations of a mechanism on a device; with `compiled` also the reference through torch.compile.

    `backend` names those to use; by default the Triton kernel if there is one, and the reference.
    """
    spec = Spec.parse(mechanism)
    if spec.name == "none":
        raise InputError("mechanism: 'none' has no attention to time; it is a baseline of `bench models`")
    operator = OPERATORS.get(spec.name, (None, None))[0]
    if operator is None and "triton" in backend:
        raise InputError(f"backend: {spec.name} has no Triton kernel; leave it out, or use torch")
    has_kernel = operator in backends.TRITON_OPERATORS
    found = list(backend) or (["triton"] if has_kernel and device.type == "cuda" else []) + ["torch"]
    names = {"triton": "triton", "torch": "reference"}
    made = [OpCandidate(f"{spec} {names[way]}", spec, way) for way in found]
    if compiled and "torch" in found:
        made.append(OpCandidate(f"{spec} reference, compiled", spec, "torch", True))
    return made


BASELINES = {SDPA: OpCandidate(SDPA, None), MOVE: OpCandidate(MOVE, None)}


def operator_of(
    candidate: OpCandidate, case: OpCase, device: torch.device, weights: torch.dtype | None = None
) -> Function:
    """The function from operands to output; `weights` as in `core_of`."""
    if candidate.name == SDPA:
        return lambda x: _softmax(x, "torch")
    if candidate.name == MOVE:
        return lambda x: torch.addcmul(x.q.detach(), x.k.detach(), x.v.detach())
    spec = candidate.spec
    assert spec is not None
    if spec.name not in OPERATORS:
        plain = _module(spec, case, device, weights)
    else:
        _, function = OPERATORS[spec.name]
        options = dict(spec.options)
        plain = lambda x: function(x, candidate.backend, **options)  # noqa: E731
    return torch.compile(plain, fullgraph=True, dynamic=False) if candidate.compiled else plain


def _module(spec: Spec, case: OpCase, device: torch.device, weights: torch.dtype | None) -> Function:
    """A mechanism without an operator in `sightline.ops`: its module, in the dtype of the tokens."""
    cores: dict[torch.dtype, Core] = {}

    def call(x: Operands) -> Tensor:
        dtype = x.q.dtype
        if dtype not in cores:
            cores[dtype] = core_of(spec, case, device, dtype, weights)
        return cores[dtype](x.q, x.k, x.v, place_of(x))

    return call


def core_of(
    spec: Spec, case: OpCase, device: torch.device, dtype: torch.dtype, weights: torch.dtype | None = None
) -> Core:
    """A mechanism as a module with reproducible random weights, rounded to `weights` before they become `dtype`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return spec.build(case.channels, case.heads, 16).to(device, weights or dtype).to(dtype).eval()


def place_of(x: Operands) -> Place:
    """Where the tokens of operands lie."""
    height, width = x.grid.shape
    return Place((height, width), x.v.flatten(2), x.case.prefix)


def with_gradients(function: Function) -> Callable[[Operands], tuple[Tensor, ...]]:
    """The output and the gradients of all inputs; None for those it does not depend on."""

    def call(x: Operands) -> tuple[Tensor, ...]:
        out = function(x)
        return out.detach(), *torch.autograd.grad(out, list(x.leaves.values()), x.grad, allow_unused=True)

    return call


def move_both_ways(x: Operands) -> tuple[Tensor, ...]:
    """Eleven tensors through memory in three plain operations: the ceiling of a forward and a backward in torch."""
    q, k, v = x.q.detach(), x.k.detach(), x.v.detach()
    return torch.addcmul(q, k, v), torch.addcmul(q, k, x.grad), v * x.grad


def calls_of(
    candidate: OpCandidate, function: Function, mode: str, sets: Sequence[Operands]
) -> list[Callable[[], object]]:
    """One call per set of operands."""
    both = move_both_ways if candidate.name == MOVE else with_gradients(function)
    run: Callable[[Operands], object] = torch.no_grad()(function) if mode == "forward" else both
    return [lambda x=x: run(x) for x in sets]  # type: ignore[misc]


def moved_tensors(mechanism: str, mode: str) -> int:
    """Tensors of (batch, tokens, heads, dim) that must be moved once.

    Forward: q, k, v and the output, 4. Backward: q, k, v, the output's gradient and three gradients, 7 more.
    """
    inputs = 2 if mechanism in SHARED_QK else 3
    return inputs + 1 if mode == "forward" else 3 * inputs + 2


def moved_bytes(case: OpCase, mechanism: str, mode: str, extra: dict[str, Tensor], element_size: int) -> int:
    """Bytes that must cross the memory bus: tensors of tokens once; small operands read, their gradients written."""
    tokens = case.batch * case.tokens * case.channels
    small = sum(t.numel() for t in extra.values()) * (1 if mode == "forward" else 3)
    return (moved_tensors(mechanism, mode) * tokens + small) * element_size


def count_flops(candidate: OpCandidate, case: OpCase, mode: str) -> int:
    """Floating-point operations of the products, two per multiply-add; a backward counts twice the forward."""
    if candidate.name == MOVE:
        return 0
    plain = OpCandidate(candidate.name, candidate.spec, "torch")
    operands = make_operands(case, candidate.spec or Spec("softmax"), torch.float32, "meta", 0)
    for leaf in operands.leaves.values():
        leaf.requires_grad_(False)  # otherwise the counter would need gradients of their views
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        operator_of(plain, case, torch.device("meta"))(operands)
    return counter.get_total_flops() * (1 if mode == "forward" else 3)
