"""What to measure: the arguments of `benchmark`, checked once, and the plans they stand for."""

import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeVar

import timm
import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from sightline.bench.candidates import Plan
from sightline.bench.cases import (
    CPU_CASES,
    MODEL_CASES,
    OP_CASES,
    PLAIN,
    PRESETS,
    ModelCase,
    OpCase,
    model_case,
    parse_shape,
)
from sightline.bench.cold_start import SHAPES, ColdStart
from sightline.bench.modules import TIMM, Module
from sightline.bench.networks import Network, baselines
from sightline.bench.operators import BASELINES, MOVE, ONE_WAY, SDPA, Operator, implementations
from sightline.layers.pattern import parse_pattern
from sightline.layers.spec import Spec
from sightline.models.factory import check_arguments, check_name
from sightline.models.weights.identify import arguments
from sightline.models.zoo import VARIANTS
from sightline.util.device import choose_device
from sightline.util.errors import InputError
from sightline.util.names import nearest, parse_model_args
from sightline.util.schema import Size, explain

T = TypeVar("T")
Called = TypeVar("Called", Network, Operator, Module)
Names = str | Sequence[str] | None
Numbers = int | str | Sequence[int | str] | None
Models = str | Network | Sequence[str | Network] | None

What = Literal["ops", "modules", "models", "cold_start"]
How = Literal["no", "yes", "reduce-overhead", "both", "all"]
FORMER = {"surprises": "cold_start"}  # former names, still accepted
# Choices that depend on the benchmark.
CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "ops": {"mode": ("forward", "forward+backward"), "baselines": (*BASELINES, "off")},
    "modules": {"mode": ("forward", "forward+backward"), "baselines": ("timm", "off")},
    "models": {"mode": ("forward", "forward+backward", "train", "latency"),
               "baselines": ("softmax", "none", "timm", "peer", "off")},
}  # fmt: skip
# Ways to call a candidate: whether it is compiled, and the mode of torch.compile.
WAYS: dict[str, tuple[tuple[bool, str], ...]] = {
    "no": ((False, ""),),
    "yes": ((True, ""),),
    "reduce-overhead": ((True, "reduce-overhead"),),
    "both": ((False, ""), (True, "")),
    "all": ((False, ""), (True, ""), (True, "reduce-overhead")),
}
# Arguments that only apply to some benchmarks.
ONLY = {
    "ops": ("mechanism", "shape", "backend"),
    "modules": ("mechanism", "shape"),
    "models": ("model", "attention", "img_size", "batch_size", "window"),
    "cold_start": ("mechanism", "shape"),
}
# Arguments that the presets `goals`, `soft` and `plain` set themselves.
FIXED = ("mechanism", "shape", "backend", "model", "attention", "img_size", "batch_size", "window", "baselines", "mode",
         "compile")  # fmt: skip
REPEATED = ("mechanism", "shape", "model", "attention")  # may contain commas


def _listed(value: object) -> tuple[object, ...]:
    """One value or several."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _split(value: object) -> tuple[str, ...]:
    """One value, several, or a text with commas."""
    parts = [part.strip() for each in _listed(value) for part in str(each).split(",")]
    if parts and not any(parts):
        raise ValueError("the value is empty; leave it out for the default")
    return tuple(part for part in parts if part)


def _network(model: str | Network) -> Network:
    """A network, or `NAME` or `NAME:key=value:key=value`."""
    if isinstance(model, str):
        name, *parts = model.split(":")
        model = Network(model, name, parse_model_args(parts))
    try:
        check_name(model.name)
        if model.name in VARIANTS:
            check_arguments(model.name, model.args)
    except InputError as error:
        raise InputError(f"model: {error}") from error
    return model


Listed = Annotated[tuple[T, ...], BeforeValidator(_listed)]
Split = Annotated[tuple[T, ...], BeforeValidator(_split), AfterValidator(lambda found: tuple(dict.fromkeys(found)))]
Mechanism = Annotated[str, AfterValidator(lambda text: Spec.parse(text) and text)]
Shape = Annotated[OpCase, BeforeValidator(parse_shape)]
Number = Annotated[int, Field(ge=1, le=1_000_000)]


class Request(BaseModel, frozen=True):
    """Checked and parsed arguments; an empty field means the default."""

    what: Annotated[What, BeforeValidator(lambda name: FORMER.get(name, name))] | None = None
    preset: Literal["table", "goals", "soft", "plain"] = "table"
    only: Split[str] = ()
    mechanism: Listed[Mechanism] = ()
    shape: Listed[Shape] = ()
    backend: Split[Literal["triton", "torch"]] = ()
    model: Listed[Annotated[Network, BeforeValidator(_network)]] = ()
    attention: Listed[str] = ()
    img_size: Split[Size] = ()
    batch_size: Annotated[tuple[Number, ...], BeforeValidator(_split)] = ()  # the same one may repeat
    window: Split[Number] = ()
    baselines: Split[str] | None = None
    mode: Split[str] = ()
    dtype: Split[Literal["float32", "tf32", "bfloat16", "float16"]] = ()
    compile: Split[How] = Field("no", validate_default=True)
    device: Literal["auto", "cuda", "cpu"] = "auto"
    budget: Annotated[int, Field(ge=1, le=600_000)] = 150  # milliseconds
    jobs: Annotated[int, Field(ge=1, le=256)] = 1

    @model_validator(mode="after")
    def _check_together(self) -> "Request":
        """Reject arguments that would be ignored, and choices of another benchmark."""
        if self.what is None and self.preset == "table":
            raise InputError(f"what: expected one of {', '.join(ONLY)}, or preset=goals for all goals")
        if self.only and self.preset != "plain":
            raise InputError("only: selects parts of preset=plain; leave it out")
        for name in self.only:
            if name not in PLAIN:
                raise InputError(f"only: {name!r} is not known; {nearest(name, tuple(PLAIN))}")
        for name in sorted(self.model_fields_set):
            users = [each for each, own in ONLY.items() if name in own]
            if self.preset != "table" and name in FIXED:
                raise InputError(f"{name}: fixed by preset {self.preset}; leave one of them out")
            if self.what and users and self.what not in users:
                raise InputError(f"{name}: only applies to `bench {users[0]}`; leave it out")
        for name, known in CHOICES.get(self.what or "", CHOICES["ops"]).items():
            for value in getattr(self, name) or ():
                if value not in known:
                    raise InputError(f"{name}: {value!r} is not known; {nearest(value, known)}")
        choose_device(self.device, "device")
        return self

    @property
    def title(self) -> str:
        """What the file names of a run begin with."""
        if self.what is None:
            return self.preset
        return f"soft_{self.what}" if self.preset == "soft" else self.what

    @property
    def target(self) -> torch.device:
        cuda = torch.cuda.is_available() if self.device == "auto" else self.device == "cuda"
        return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.dtype or (("bfloat16",) if self.target.type == "cuda" else ("float32",))

    @property
    def ways(self) -> tuple[tuple[bool, str], ...]:
        """How candidates are called."""
        return tuple(dict.fromkeys(way for name in self.compile for way in WAYS[name]))

    def compared(self, known: Iterable[str]) -> tuple[str, ...]:
        """The baselines; by default all that are known."""
        return tuple(known) if self.baselines is None else tuple(name for name in self.baselines if name != "off")


def read_request(given: Mapping[str, object]) -> Request:
    """Check and parse arguments.

    Raises:
        InputError: one of them cannot be used; the message begins with its name.
    """
    try:
        return Request(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise InputError(explain(error)) from None


def given_arguments(values: Mapping[str, object]) -> dict[str, object]:
    """Arguments of a request that differ from their defaults; an empty list is a default too, except for baselines."""
    defaults = {name: item.default for name, item in Request.model_fields.items()}
    return {
        name: values[name]
        for name, default in defaults.items()
        if values.get(name) not in (None, default, [] if name != "baselines" else None)
    }


def command_of(given: Mapping[str, object]) -> str:
    """The command that measures the same again."""
    words = ["sightline", "bench", *([str(given["what"])] if "what" in given else [])]
    for name, value in given.items():
        if name != "what":
            values = [str(each) for each in _listed(value)]
            joined = values if name in REPEATED else [",".join(values) or "off"]
            words += [word for each in joined for word in (f"--{name.replace('_', '-')}", each)]
    return shlex.join(words)


def make_plans(request: Request) -> list[Plan | ColdStart]:
    """What a request measures, in order."""
    if request.preset != "table":
        return _preset_plans(request)
    if request.what == "cold_start":
        mechanisms, shapes = request.mechanism or ("inline",), request.shape or SHAPES
        return [ColdStart(mechanism, dtype, shapes) for mechanism in mechanisms for dtype in request.dtypes]
    return [*{"ops": _op_plans, "modules": _module_plans, "models": _model_plans}[request.what or ""](request)]


def measured_by(plans: Iterable[Plan | ColdStart]) -> list[tuple[str, str, str, str]]:
    """Kind, case, mode and dtype of every plan."""
    timed = [plan for plan in plans if isinstance(plan, Plan)]
    return [(plan.candidates[0].kind, plan.case.name, plan.mode, plan.dtype) for plan in timed]


def _preset_plans(request: Request) -> list[Plan | ColdStart]:
    device = request.target.type
    own = {"device": device, **({"dtype": request.dtype} if request.dtype else {})}
    parts = [
        {key: value for key, value in part.items() if key != "part"}
        for part in PRESETS.get((request.preset, device), ())
        if request.what in (None, part["what"]) and (not request.only or part["part"] in request.only)
    ]
    if not parts:
        what = request.what or ", ".join(request.only) or "anything"
        raise InputError(f"preset: {request.preset} does not measure {what} on {device}; leave it out, or use cuda")
    plans = [plan for part in parts for plan in make_plans(read_request({**part, **own}))]
    if request.preset == "plain":
        return [replace(plan, plain=True) if isinstance(plan, Plan) else plan for plan in plans]
    return plans


def _op_plans(request: Request) -> list[Plan]:
    """Mechanisms and baselines on shapes; by default InLine on every shape of the table."""
    found = [
        each
        for name in request.mechanism or ("inline",)
        for each in implementations(name, request.target, request.backend)
    ]
    found += [BASELINES[name] for name in request.compared((SDPA, MOVE))]
    one_way = [each for each in found if each.label in ONE_WAY]
    candidates = (*_in_ways([each for each in found if each not in one_way], request), *one_way)
    cases = request.shape or tuple(OP_CASES.values())
    modes = request.mode or CHOICES["ops"]["mode"]
    every = itertools.product(request.dtypes, cases, modes)
    return [Plan(case, mode, dtype, candidates) for dtype, case, mode in every]


def _module_plans(request: Request) -> list[Plan]:
    """Attention modules of mechanisms and timm's, on shapes; by default InLine on every shape of the table."""
    found = [Module(f"{name} module", Spec.parse(name)) for name in request.mechanism or ("inline",)]
    found += [Module(TIMM, None) for _ in request.compared(("timm",))]
    cases = request.shape or tuple(OP_CASES.values())
    every = itertools.product(request.dtypes, cases, request.mode or CHOICES["modules"]["mode"])
    return [Plan(case, mode, dtype, _in_ways(found, request)) for dtype, case, mode in every]


def _model_plans(request: Request) -> list[Plan]:
    """Networks and their baselines at sizes; by default every row of the table (on a CPU the small one)."""
    kinds = request.compared(("softmax", "none", "timm"))
    cases = []
    for network, case in _model_cases(request):
        found = [*_with_mechanisms(network, request.attention), *baselines(network, kinds)]
        if request.window:
            found = [each for network in found for each in _windowed(network, request.window)]
        cases.append((case, {network.label: network for network in found}.values()))
    every = itertools.product(request.dtypes, cases, request.mode or ("forward", "train"))
    return [Plan(case, mode, dtype, _in_ways(networks, request)) for dtype, (case, networks), mode in every]


def _in_ways(found: Iterable[Called], request: Request) -> tuple[Called, ...]:
    """Every candidate, called in every way that was asked for."""
    ways, found = request.ways, list(found)
    return tuple(replace(each, compiled=compiled, compile_mode=mode) for compiled, mode in ways for each in found)


def _model_cases(request: Request) -> list[tuple[Network, ModelCase]]:
    device = request.target.type
    if not request.model and not request.img_size and not request.batch_size:
        table = MODEL_CASES if device == "cuda" else CPU_CASES
        return [(Network(case.model, case.model), case) for case in table]
    found = []
    for network in request.model or (_network("inline_deit_tiny"),):
        usual = timm.get_pretrained_cfg(network.name, allow_unregistered=True).input_size[1:]
        sizes, batches = request.img_size or (usual,), request.batch_size
        cases = [model_case(network.label, network.name, size, device) for size in sizes]
        if len(batches) not in (0, 1, len(sizes)):
            raise InputError(f"batch_size: expected one, or one per size; got {len(batches)} for {len(sizes)} sizes")
        if batches:
            pairs = zip(sizes, batches * len(sizes), strict=False)
            cases = [ModelCase(network.label, size, batch) for size, batch in pairs]
        found += [(network, case) for case in cases]
    return found


def _with_mechanisms(network: Network, attentions: Iterable[str]) -> list[Network]:
    """A network as it is and, if it is one of sightline's, once with each of the other mechanisms."""
    if network.name not in VARIANTS:
        return [network]
    depths = {**arguments(network.name), **network.args}["depths"]
    for text in attentions:
        parse_pattern(text, (depths,) if isinstance(depths, int) else depths)
    return [network, *(network.with_args(text, attention=text) for text in attentions)]


def _windowed(network: Network, windows: Iterable[int]) -> list[Network]:
    """A network once per window size if it has windows: those of softmax, or of the feature map for all others."""
    if network.name not in VARIANTS or "map_window" not in arguments(network.name):
        return [network]
    return [network.with_args(f"w{side}", window_size=side, map_window=side) for side in windows]
