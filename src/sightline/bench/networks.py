"""Models as candidates: sightline's and timm's; with softmax; and without attention, the upper limit of speed."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import backend as backends
from sightline.bench.cases import TIMM_BASELINES, Grid
from sightline.bench.check import MismatchError, row_error
from sightline.bench.precision import DTYPES, MODEL_FACTOR, TOLERANCES, precision
from sightline.models.zoo import VARIANTS
from sightline.util.errors import InputError

CLASSES = 1000
CHECKED_IMAGES = 2
OPTIONAL = ("img_size", "drop_path_rate")  # not every timm model has these; stochastic depth is off for all


@dataclass(frozen=True)
class Network:
    """A model registered with timm, and its arguments; `label` names it in tables."""

    label: str
    name: str
    args: Mapping[str, object] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.label)

    def __str__(self) -> str:
        return self.label

    @property
    def window(self) -> int | None:
        """The side of the attention windows if it was set."""
        value = self.args.get("map_window", self.args.get("window_size"))
        return value if isinstance(value, int) else None


def baselines(network: Network, kinds: tuple[str, ...]) -> list[Network]:
    """What a model is compared with: "softmax" and "none" are its attention, "timm" is timm's model of its size."""
    found = []
    for kind in kinds:
        if kind == "timm" and network.name in TIMM_BASELINES:
            name = TIMM_BASELINES[network.name]
            found.append(Network(f"timm {name}", name))
        elif kind in ("softmax", "none") and network.name in VARIANTS:
            found.append(Network(f"{network.label} {kind}", network.name, {**network.args, "attention": kind}))
    return found


def build(network: Network, size: Grid) -> nn.Module:
    """Build a model for images of `size` with reproducible random weights.

    Raises:
        InputError: the model does not take this size or these arguments.
    """
    args: dict[str, object] = {"num_classes": CLASSES, **dict.fromkeys(OPTIONAL, 0.0), "img_size": size, **network.args}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return _create(network.name, args)
        except TypeError as error:
            raise InputError(f"{network.label}: {error}") from error


def _create(name: str, args: dict[str, object]) -> nn.Module:
    """Create the model without those of `OPTIONAL` that it does not accept."""
    try:
        return timm.create_model(name, **args)
    except TypeError as error:
        unknown = [key for key in OPTIONAL if f"'{key}'" in str(error) and key in args]
        if not unknown:
            raise
        return _create(name, {key: value for key, value in args.items() if key not in unknown})


@contextmanager
def reference_backend() -> Iterator[None]:
    """Run every operator by its reference."""
    before = os.environ.get(backends.VARIABLE)
    os.environ[backends.VARIABLE] = "torch"
    try:
        yield
    finally:
        if before is None:
            del os.environ[backends.VARIABLE]
        else:
            os.environ[backends.VARIABLE] = before


@dataclass
class Job:
    """A model ready to be called: `call` is timed, `logits` is checked against `expected`."""

    call: Callable[[], object]
    logits: Callable[[], Tensor]
    held_bytes: int
    expected: Tensor


def make_job(
    network: Network, size: Grid, batch: int, mode: str, dtype: str, compiled: bool, device: torch.device
) -> Job:
    """Build a model and the call to time.

    Inference keeps its weights in `dtype`. Training has float32 weights, autocast to a half-precision `dtype`, cross
    entropy, and for "train" a step of AdamW; float16 has no loss scaling, whose cost is negligible.
    """
    model = build(network, size).to(device)
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randn(batch, 3, *size, device=device, generator=generator)
    with torch.no_grad(), precision("float32"), reference_backend():
        expected = model.eval()(images[:CHECKED_IMAGES])
    if mode == "forward":
        model, images = model.to(DTYPES[dtype]), images.to(DTYPES[dtype])
    run = torch.compile(model, dynamic=False) if compiled else model
    held = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers(), images))
    if mode == "forward":
        logits = _inference(run, images)
        return Job(logits, logits, held, expected)
    labels = torch.randint(CLASSES, (batch,), device=device, generator=generator)
    call, optimizer_bytes = _training(model.train(), run, images, labels, dtype, mode == "train")
    return Job(call, _evaluation(model, images[:CHECKED_IMAGES], dtype), held + optimizer_bytes, expected)


def _inference(run: Callable[[Tensor], Tensor], images: Tensor, autocast: str | None = None) -> Callable[[], Tensor]:
    def call() -> Tensor:
        with torch.no_grad(), _autocast(images.device, autocast):
            return run(images)

    return call


def _evaluation(model: nn.Module, images: Tensor, dtype: str) -> Callable[[], Tensor]:
    """The logits of a model in training mode as it gives them in evaluation mode."""
    forward = _inference(model, images, dtype)

    def call() -> Tensor:
        model.eval()
        try:
            return forward()
        finally:
            model.train()

    return call


def _autocast(device: torch.device, dtype: str | None) -> AbstractContextManager[object]:
    half = dtype is not None and DTYPES[dtype] in (torch.bfloat16, torch.float16)
    return torch.autocast(device.type, DTYPES[dtype or "float32"]) if half else nullcontext()


def _training(
    model: nn.Module, run: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, dtype: str, step: bool
) -> tuple[Callable[[], None], int]:
    """Forward, backward and optionally an optimizer step; and the bytes of the optimizer's state."""
    cuda = images.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=cuda)
    vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True  # plain calls are timed too

    def call() -> None:
        with _autocast(images.device, dtype):
            logits = run(images)
        F.cross_entropy(logits.float(), labels).backward()
        if step:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    state = 2 * sum(p.numel() * p.element_size() for p in model.parameters()) if step else 0
    return call, state


def check_job(job: Job, label: str, dtype: str) -> float:
    """The error of the logits against the float32 reference.

    Raises:
        MismatchError: the error is too large.
    """
    limit = MODEL_FACTOR * TOLERANCES[dtype]
    error = row_error(job.logits()[:CHECKED_IMAGES], job.expected)
    if not error <= limit:
        raise MismatchError(
            f"{label}, {dtype}: the logits are {error:.2g} from the float32 reference (limit {limit:g}); not timed"
        )
    return error
