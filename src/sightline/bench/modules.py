"""Attention modules as candidates: from tokens to tokens, with both projections, next to timm's softmax module."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from timm.models.vision_transformer import Attention as TimmAttention
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sightline.bench.candidates import DTYPES, TOLERANCES, Plan, check, compile_apart, reference
from sightline.bench.cases import OpCase
from sightline.bench.clock import Work
from sightline.layers.attention import Attention
from sightline.layers.spec import Spec

TIMM = "timm Attention"


@dataclass(frozen=True)
class Module:
    """The attention module of a mechanism; without one, timm's."""

    label: str
    spec: Spec | None
    compiled: bool = False
    compile_mode: str = ""
    kind: ClassVar[str] = "module"

    def build(self, case: OpCase) -> nn.Module:
        """With reproducible random weights, called with tokens only."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if self.spec is None:
                return TimmAttention(case.channels, case.heads, qkv_bias=True).eval()
            return _Placed(Attention(case.channels, case.heads, self.spec), case).eval()

    def prepare(self, plan: Plan, device: torch.device) -> Work:
        """Weights and tokens are in the dtype of the plan; with a backward, tokens and weights get gradients."""
        case, dtype = plan.case, DTYPES[plan.dtype]
        assert isinstance(case, OpCase)
        module = self.build(case).to(device, dtype)
        generator = torch.Generator(device).manual_seed(0)
        x = torch.randn(case.batch, case.tokens, case.channels, device=device, generator=generator).to(dtype)
        definition = replace(self, compiled=False).build(case).to(device, dtype).float()
        with torch.no_grad(), reference():
            expected = definition(x.float())
        run: Callable[[Tensor], Tensor] = module
        if self.compiled:
            run = compile_apart(module, self.compile_mode, fullgraph=True)
        with torch.no_grad():
            error = check(f"{self.label} on {case.name}, {plan.dtype}: output", run(x), expected,
                          TOLERANCES[plan.dtype])  # fmt: skip
        call: Callable[[], object] = torch.no_grad()(lambda: run(x))
        if plan.mode != "forward":
            grad, leaves = torch.randn_like(x), [x.requires_grad_(), *module.parameters()]
            call = lambda: torch.autograd.grad(run(x), leaves, grad)  # noqa: E731
        held = sum(t.numel() * t.element_size() for t in (x, *module.parameters()))
        return Work([call], held, error, graphs=bool(self.compile_mode))

    def moved_bytes(self, plan: Plan) -> int:
        return 0

    def flops(self, plan: Plan) -> int:
        case = plan.case
        assert isinstance(case, OpCase)
        with torch.device("meta"):
            module = self.build(case)
            x = torch.empty(case.batch, case.tokens, case.channels)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(x)
        return counter.get_total_flops() * plan.passes


class _Placed(nn.Module):
    """An attention module that knows where the tokens lie."""

    def __init__(self, attention: Attention, case: OpCase) -> None:
        super().__init__()
        self.attention, self.grid, self.prefix = attention, case.grid, case.prefix

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, self.grid, self.prefix)
        return out
