"""Models as candidates: sightline's and timm's; with softmax; and without attention, the upper limit of speed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.bench.candidates import DTYPES, TOLERANCES, Plan, check, compile_apart, reference
from sightline.bench.cases import TIMM_BASELINES, TIMM_PEERS, Grid, ModelCase
from sightline.bench.clock import Work
from sightline.bench.cost import Cost, measure_cost
from sightline.models.zoo import VARIANTS
from sightline.util.errors import InputError

CLASSES = 1000
CHECKED_IMAGES = 2
MODEL_FACTOR = 10  # on the tolerance: a model rounds after every layer, and the check finds wrong kernels, not rounding
OPTIONAL = ("img_size", "drop_path_rate")  # not every timm model has these; stochastic depth is off for all


@dataclass(frozen=True)
class Network:
    """A model registered with timm, and its arguments; `label` names it in tables."""

    label: str
    name: str
    args: Mapping[str, object] = field(default_factory=dict)
    compiled: bool = False
    compile_mode: str = ""
    kind: ClassVar[str] = "model"

    def __str__(self) -> str:
        return self.label

    def with_args(self, suffix: str, **args: object) -> "Network":
        """The same model with other arguments, and `suffix` after its label."""
        return replace(self, label=f"{self.label} {suffix}", args={**self.args, **args})

    @property
    def window(self) -> int | None:
        """The side of the attention windows if it was set."""
        value = self.args.get("map_window", self.args.get("window_size"))
        return value if isinstance(value, int) else None

    def build(self, size: Grid) -> nn.Module:
        """Build the model for images of `size` with reproducible random weights.

        Raises:
            InputError: the model does not take this size or these arguments.
        """
        args = {"num_classes": CLASSES, **dict.fromkeys(OPTIONAL, 0.0), "img_size": size, **self.args}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return _create(self.name, args)
            except TypeError as error:
                raise InputError(f"{self.label}: {error}") from error

    def prepare(self, plan: Plan, device: torch.device) -> Work:
        """Inference keeps its weights in the dtype of the plan, training is autocast to it on float32 weights."""
        case, dtype = plan.case, DTYPES[plan.dtype]
        assert isinstance(case, ModelCase)
        model = self.build(case.size).to(device).eval()
        generator = torch.Generator(device).manual_seed(0)
        images = torch.randn(plan.batch, 3, *case.size, device=device, generator=generator)
        with torch.no_grad(), reference():
            expected = model(images[:CHECKED_IMAGES])
        call: Callable[[], object]
        state = 0
        if plan.mode in ("forward", "latency"):
            model, images = model.to(dtype), images.to(dtype)
            run = self._run(model)
            call = forward = torch.no_grad()(lambda: run(images))
            logits = forward()[:CHECKED_IMAGES].clone()
        else:
            with torch.no_grad(), _autocast(device, dtype):
                logits = model(images[:CHECKED_IMAGES])
            labels = torch.randint(CLASSES, (plan.batch,), device=device, generator=generator)
            call = training(model, self._run(model.train()), images, labels, dtype, plan.mode == "train")
            state = 2 * _bytes(*model.parameters()) if plan.mode == "train" else 0  # of the optimizer
        what = f"{self.label} {case.name.rpartition(' ')[2]}, {plan.dtype}: the output"
        error = check(what, logits, expected, MODEL_FACTOR * TOLERANCES[plan.dtype])
        held = _bytes(*model.parameters(), *model.buffers(), images) + state
        return Work([call], held, error, waits=plan.mode == "latency", graphs=bool(self.compile_mode))

    def _run(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        return compile_apart(model, self.compile_mode) if self.compiled else model

    def moved_bytes(self, plan: Plan) -> int:
        return 0

    def flops(self, plan: Plan) -> int:
        assert isinstance(plan.case, ModelCase)
        return 2 * self.cost(plan.case.size).macs * plan.batch * plan.passes

    def cost(self, size: Grid) -> Cost:
        """Of one image."""
        key = (self.name, repr(self.args), size)
        if key not in _COSTS:
            with torch.device("meta"):
                _COSTS[key] = measure_cost(self.build(size), (3, *size))
        return _COSTS[key]


_COSTS: dict[tuple[str, str, Grid], Cost] = {}  # a network is measured in several modes


def baselines(network: Network, kinds: tuple[str, ...]) -> list[Network]:
    """What a model is compared with.

    "softmax" and "none" are its attention, "timm" is timm's softmax model of its size and family, "peer" timm's model
    with linear attention of about its size.
    """
    found = []
    models = {"timm": TIMM_BASELINES, "peer": TIMM_PEERS}
    for kind in kinds:
        if network.name in models.get(kind, ()):
            name = models[kind][network.name]
            found.append(Network(f"timm {name}", name))
        elif kind in ("softmax", "none") and network.name in VARIANTS:
            found.append(network.with_args(kind, attention=kind))
    return found


def _create(name: str, args: dict[str, object]) -> nn.Module:
    """Create the model without those of `OPTIONAL` that it does not accept."""
    try:
        return timm.create_model(name, **args)
    except TypeError as error:
        unknown = [key for key in OPTIONAL if f"'{key}'" in str(error) and key in args]
        if not unknown:
            raise
        return _create(name, {key: value for key, value in args.items() if key not in unknown})


def training(
    model: nn.Module,
    run: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    dtype: torch.dtype,
    step: bool,
) -> Callable[[], None]:
    """Cross entropy and its backward and, if `step`, AdamW; float16 has no loss scaling, whose cost is negligible.

    `run` is the model, or what was compiled of it.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=True, capturable=images.device.type == "cuda"
    )  # fmt: skip
    vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True  # plain calls are timed too

    def call() -> None:
        with _autocast(images.device, dtype):
            logits = run(images)
        F.cross_entropy(logits.float(), labels).backward()
        if step:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def _autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    half = dtype != torch.float32
    return torch.autocast(device.type, dtype if half else None, enabled=half)


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
