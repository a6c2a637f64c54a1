"""Attention operators as candidates: their inputs, how each is called, its check, and the bytes it must move.

Queries, keys and values are views of one packed tensor, as a projection creates them, for every candidate.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sightline import backend as backends
from sightline.bench.candidates import DTYPES, TOLERANCES, Plan, check, compile_apart, precision, reference
from sightline.bench.cases import OpCase
from sightline.bench.clock import Work
from sightline.bench.peers import FLASH_BLA, FLEX, PEERS
from sightline.layers.core import Core, Place
from sightline.layers.spec import Spec
from sightline.ops import inline_attention, linear_attention, soft_attention, softmax_attention
from sightline.util.errors import InputError

SDPA, MOVE, PRODUCT = "sdpa", "move", "product"
LANDMARKS = 49  # default for soft and soft_norm
SHARED_QK = ("soft", "soft_norm")  # queries are their own keys
L2_BYTES = 50 * 2**20  # of an H200, if the driver does not report it
MAX_SETS = 8
FLOORS = (MOVE, PRODUCT)  # no mechanisms, and nothing to check


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

    def images(self, indices: list[int], dtype: torch.dtype | None = None) -> "Operands":
        """Some of the images, in the same memory layout."""
        packed = torch.stack([t.detach()[indices] for t in (self.q, self.k, self.v)], 2).to(dtype)
        q, k, v = (part.requires_grad_() for part in packed.unbind(2))
        extra = {name: t.detach()[indices].to(dtype).requires_grad_() for name, t in self.extra.items()}
        return replace(self, q=q, k=k, v=v, extra=extra, grad=self.grad[indices].to(dtype))

    @property
    def place(self) -> Place:
        """Where the tokens lie."""
        height, width = self.grid.shape
        return Place((height, width), self.v.flatten(2), self.case.prefix)

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


def _soft(x: Operands, backend: str | None, normalized: bool, iterations: int = 20, **_: object) -> Tensor:
    landmarks = x.extra["landmarks"]
    return soft_attention(x.q, x.v, landmarks, normalized=normalized, iterations=iterations, backend=backend)


# Mechanism -> its operator and how to call it. Others are timed as modules, including what they compute from tokens.
OPERATORS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "softmax": ("softmax_attention", _softmax),
    "linear": ("linear_attention", _linear),
    "inline": ("inline_attention", _inline),
    "soft": ("soft_attention", partial(_soft, normalized=False)),
    "soft_norm": ("soft_attention", partial(_soft, normalized=True)),
}


# Options that a layer applies to what the operator takes.
OF_LAYERS = ("key_norm", "temperature", "head_map", "hidden", "softmax_prefix", "agents")


def operator_of(spec: Spec) -> tuple[str, Callable[..., Tensor]] | None:
    """The operator of a mechanism, if it does all of it."""
    return None if any(dict(spec.options).get(name) for name in OF_LAYERS) else OPERATORS.get(spec.name)


@dataclass(frozen=True)
class Operator:
    """A way to compute a mechanism: `backend` is "triton", "torch" or a peer's name. `move` only moves tensors, and
    `product` is q * k + v: what a call with a gradient costs, in eager mode and compiled, whatever it computes."""

    label: str
    spec: Spec
    backend: str = "torch"
    compiled: bool = False
    compile_mode: str = ""
    kind: ClassVar[str] = "op"

    def prepare(self, plan: Plan, device: torch.device) -> Work:
        case, dtype = plan.case, DTYPES[plan.dtype]
        assert isinstance(case, OpCase)
        function = self.function(case, device, dtype)
        count = count_sets(self.moved_bytes(plan), device)
        sets = [make_operands(case, self.spec, dtype, device, seed) for seed in range(count)]
        error = 0.0 if self.label in FLOORS else self.check(function, sets[0], plan)
        both = move_both_ways if self.label == MOVE else with_gradients(function)
        run: Callable[[Operands], object] = torch.no_grad()(function) if plan.mode == "forward" else both
        return Work([partial(run, x) for x in sets], sets[0].nbytes, error, graphs=bool(self.compile_mode))

    def function(
        self, case: OpCase, device: torch.device, dtype: torch.dtype, weights: torch.dtype | None = None
    ) -> Function:
        """From operands of `dtype` to output; `weights` as in `make_core`."""
        plain: Function
        if self.label == MOVE:
            return lambda x: torch.addcmul(x.q.detach(), x.k.detach(), x.v.detach())
        if self.label == PRODUCT:
            plain = lambda x: torch.addcmul(x.v, x.q, x.k)  # noqa: E731
        elif self.backend in PEERS:
            peer = PEERS[self.backend]()
            plain = lambda x: peer(x.q, x.k, x.v)  # noqa: E731
        elif (operator := operator_of(self.spec)) is not None:
            call = operator[1]
            options = {name: value for name, value in self.spec.options if name not in OF_LAYERS}
            plain = lambda x: call(x, self.backend, **options)  # noqa: E731
        else:
            core = make_core(self.spec, case, device, dtype, weights)
            plain = lambda x: core(x.q, x.k, x.v, x.place)  # noqa: E731
        return compile_apart(plain, self.compile_mode, fullgraph=True) if self.compiled else plain

    def check(self, function: Function, x: Operands, plan: Plan) -> float:
        """The largest error of `function` on the first and the last image, at the full shape of the operands."""
        indices = sorted({0, x.case.batch - 1})
        plain = replace(self, backend="torch", compiled=False)
        definition = plain.function(x.case, x.q.device, torch.float32, DTYPES[plan.dtype])
        with reference():
            wanted = _results(definition, x.images(indices, torch.float32), plan.mode)
        with precision(plan.dtype):
            results = _results(function, x, plan.mode)
        return max(
            check(f"{self.label} on {x.case.name}, {plan.dtype}: {name}", results[name][indices].flatten(2),
                  want.flatten(2), TOLERANCES[plan.dtype])
            for name, want in wanted.items()
        )  # fmt: skip

    def moved_bytes(self, plan: Plan) -> int:
        """Tensors of tokens once; small operands are read, their gradients written.

        Forward: q, k, v and the output, 4. Backward: q, k, v, the output's gradient and three gradients, 7 more.
        """
        case = plan.case
        assert isinstance(case, OpCase)
        inputs = 2 if self.spec.name in SHARED_QK else 3
        tensors = inputs + 1 if plan.mode == "forward" else 3 * inputs + 2
        extra = make_operands(case, self.spec, DTYPES[plan.dtype], "meta", 0).extra
        small = sum(t.numel() for t in extra.values()) * plan.passes
        return (tensors * case.batch * case.tokens * case.channels + small) * DTYPES[plan.dtype].itemsize

    def flops(self, plan: Plan) -> int:
        if self.label in FLOORS:
            return 0
        case, meta = plan.case, torch.device("meta")
        assert isinstance(case, OpCase)
        operands = make_operands(case, self.spec, torch.float32, meta, 0)
        for leaf in operands.leaves.values():
            leaf.requires_grad_(False)  # otherwise the counter would need gradients of their views
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            replace(self, backend="torch", compiled=False).function(case, meta, torch.float32)(operands)
        return counter.get_total_flops() * plan.passes


BASELINES = {
    SDPA: Operator(SDPA, Spec("softmax")),
    MOVE: Operator(MOVE, Spec("softmax")),
    PRODUCT: Operator(PRODUCT, Spec("softmax")),
    FLEX: Operator(FLEX, Spec("softmax"), FLEX, compiled=True),  # slow and without use unless compiled
    FLASH_BLA: Operator(FLASH_BLA, Spec("linear"), FLASH_BLA),
}
ONE_WAY = (MOVE, FLEX, FLASH_BLA)  # called in one way only


def implementations(mechanism: str, device: torch.device, backend: Sequence[str] = ()) -> list[Operator]:
    """The implementations of a mechanism on a device.

    `backend` names those to use; by default the Triton kernel if there is one, and the reference.
    """
    spec = Spec.parse(mechanism)
    if spec.name == "none":
        raise InputError("mechanism: 'none' has no attention to time; it is a baseline of `bench models`")
    operator = (operator_of(spec) or (None, None))[0]
    if operator is None and "triton" in backend:
        raise InputError(f"backend: {spec} has no Triton kernel; leave it out, or use torch")
    has_kernel = operator in backends.TRITON_OPERATORS
    found = list(backend) or (["triton"] if has_kernel and device.type == "cuda" else []) + ["torch"]
    names = {"triton": "triton", "torch": "reference"}
    return [Operator(f"{spec} {names[way]}", spec, way) for way in found]


def make_core(
    spec: Spec, case: OpCase, device: torch.device, dtype: torch.dtype, weights: torch.dtype | None = None
) -> Core:
    """A mechanism as a module with reproducible random weights, rounded to `weights` before they become `dtype`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return spec.build(case.channels, case.heads, 16).to(device, weights or dtype).to(dtype).eval()


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


def _results(function: Function, x: Operands, mode: str) -> dict[str, Tensor]:
    """The output, and the gradients if the mode has a backward, by name."""
    if mode == "forward":
        with torch.no_grad():
            return {"output": function(x)}
    out, *grads = with_gradients(function)(x)
    named = zip(x.leaves, grads, strict=True)
    return {"output": out, **{f"gradient of {name}": grad for name, grad in named if grad is not None}}


def count_sets(moved: int, device: torch.device) -> int:
    """How many sets of inputs to rotate through, so that none is still in the cache."""
    if device.type != "cuda":
        return 1
    cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES)
    return max(1, min(MAX_SETS, math.ceil(4 * cache / moved)))
