"""What to measure: the arguments of `benchmark`, checked once and parsed."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields

import timm
import torch

from sightline.bench.cases import MODES, Grid, OpCase, parse_shape
from sightline.bench.networks import Network
from sightline.bench.operators import MOVE, SDPA
from sightline.bench.precision import DTYPES
from sightline.layers.spec import Spec
from sightline.models.weights.identify import arguments
from sightline.models.zoo import VARIANTS
from sightline.util.errors import InputError
from sightline.util.names import nearest, parse_size

Names = str | Sequence[str] | None
Numbers = int | str | Sequence[int | str] | None
Models = str | Network | Sequence[str | Network] | None

WHAT = ("ops", "models", "cold_start")
FORMER = {"surprises": "cold_start"}  # former names, still accepted
PRESETS = ("table", "goals", "soft")
COMPILE = {"no": (False,), "yes": (True,), "both": (False, True)}
BACKENDS = ("triton", "torch")
OP_MODES, OP_BASELINES = ("forward", "forward+backward"), (SDPA, MOVE)
MODEL_BASELINES = ("softmax", "none", "timm")
# Arguments that only apply to some benchmarks.
ONLY = {
    "ops": ("mechanism", "shape", "backend"),
    "models": ("model", "attention", "img_size", "batch_size", "window", "jobs"),
    "cold_start": ("mechanism", "shape"),
}
# Arguments that the presets `goals` and `soft` set themselves.
FIXED = ("mechanism", "shape", "backend", "model", "attention", "img_size", "batch_size", "window", "baselines", "mode",
         "compile")  # fmt: skip
REPEATED = ("mechanism", "shape", "model", "attention")  # may contain commas


@dataclass(frozen=True)
class Arguments:
    """The arguments of `benchmark`, as given; None means the default."""

    what: str | None = None
    preset: str | None = None
    mechanism: Names = None
    shape: Names = None
    backend: Names = None
    model: Models = None
    attention: Names = None
    img_size: Numbers = None
    batch_size: Numbers = None
    window: Numbers = None
    baselines: Names = None
    mode: Names = None
    dtype: Names = None
    compile: str = "no"
    device: str | None = None
    budget: int = 150
    jobs: int = 1

    def given(self) -> dict[str, object]:
        """Arguments that differ from their defaults."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "what"}
        usual = {item.name: item.default for item in fields(self)}
        empty = {name for name, value in values.items() if name != "baselines" and value in ((), [])}
        return {name: value for name, value in values.items() if value != usual[name] and name not in empty}

    def command(self) -> str:
        """The command that measures the same again."""
        words = ["sightline", "bench", *([self.what] if self.what else [])]
        for name, value in self.given().items():
            flag = f"--{name.replace('_', '-')}"
            values = [str(each) for each in (value if isinstance(value, list | tuple) else (value,))]
            joined = values if name in REPEATED else [",".join(values) or "off"]
            words += [word for each in joined for word in (flag, each)]
        return shlex.join(words)


@dataclass(frozen=True)
class Request:
    """Checked and parsed arguments; an empty field means the default. `compiled` is a value of `COMPILE`."""

    device: torch.device
    dtypes: tuple[str, ...]
    modes: tuple[str, ...] = ()
    compiled: tuple[bool, ...] = (False,)
    mechanisms: tuple[str, ...] = ()
    shapes: tuple[OpCase, ...] = ()
    backends: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    attentions: tuple[str, ...] = ()
    sizes: tuple[Grid, ...] = ()
    batches: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    baselines: tuple[str, ...] | None = None
    what: tuple[str, ...] = WHAT
    preset: str | None = None
    model_dtypes: tuple[str, ...] = ()  # for models, if they differ from those of operators


def read_request(given: Arguments) -> Request:
    """Check and parse arguments.

    Raises:
        InputError: one of them cannot be used; the message begins with its name.
    """
    what = _what(given.what, given.preset)
    _check_applicable(given, what)
    if given.compile not in COMPILE:
        raise InputError(f"compile: expected one of {', '.join(COMPILE)}; got {given.compile!r}")
    device = _device(given.device)
    models = given.what == "models"
    dtypes = _choices("dtype", given.dtype, tuple(DTYPES))
    usual = "bfloat16" if device.type == "cuda" else "float32"
    baselines = None
    if given.baselines is not None:
        off = given.baselines == "off"
        baselines = () if off else _choices("baselines", given.baselines, MODEL_BASELINES if models else OP_BASELINES)
    mechanisms = _texts(given.mechanism)
    for mechanism in mechanisms:
        Spec.parse(mechanism)
    soft = given.preset == "soft" and not dtypes
    return Request(
        device,
        dtypes or (usual,),
        _choices("mode", given.mode, MODES if models else OP_MODES),
        COMPILE[given.compile],
        mechanisms,
        tuple(parse_shape(text) for text in _texts(given.shape)),
        _choices("backend", given.backend, BACKENDS),
        _networks(given.model),
        _texts(given.attention),
        tuple(parse_size(text, "img_size") for text in _split(given.img_size)),
        _numbers("batch_size", given.batch_size),
        _numbers("window", given.window),
        baselines,
        what,
        given.preset,
        ("bfloat16", "tf32") if soft else dtypes,  # the public figures of SOFT are in TF32
    )


def _what(what: str | None, preset: str | None) -> tuple[str, ...]:
    """The benchmarks to run, in order."""
    if preset is not None and preset not in PRESETS:
        raise InputError(f"preset: expected one of {', '.join(PRESETS)}; got {preset!r}")
    if what is None:
        if preset in ("goals", "soft"):
            return WHAT if preset == "goals" else ("ops", "models")
        raise InputError(f"bench what? give one of {', '.join(WHAT)}, or --preset goals for all goals")
    what = FORMER.get(what, what)
    if what not in WHAT:
        raise InputError(f"bench: no benchmark {what!r}; {nearest(what, WHAT, 'expected ' + ', '.join(WHAT))}")
    if (preset, what) == ("soft", "cold_start"):
        raise InputError("preset: soft has ops and models only; for cold_start use mechanism soft instead")
    return (what,)


def _check_applicable(given: Arguments, what: tuple[str, ...]) -> None:
    """Reject arguments that would be ignored, and numbers that are too small."""
    names = given.given()
    allowed = {name for each in what for name in ONLY[each]}
    for each, own in ONLY.items():
        for name in own:
            if name in names and name not in allowed:
                raise InputError(f"{name}: only applies to `bench {each}`; leave it out")
    if given.preset in ("goals", "soft"):
        for name in FIXED:
            if name in names:
                raise InputError(f"{name}: fixed by preset {given.preset}; leave one of them out")
    for name, value in (("budget", given.budget), ("jobs", given.jobs)):
        if value < 1:
            raise InputError(f"{name}: expected at least 1; got {value}")


def _device(name: str | None) -> torch.device:
    usable = torch.cuda.is_available()
    if name not in (None, "cuda", "cpu"):
        raise InputError(f"device: expected cuda or cpu; got {name!r}")
    if name == "cuda" and not usable:
        raise InputError("device: torch finds no CUDA device for 'cuda'; use cpu")
    cuda = usable if name is None else name == "cuda"
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def _networks(given: Models) -> tuple[Network, ...]:
    several = () if given is None else (given,) if isinstance(given, str | Network) else given
    return tuple(_network(model) for model in several)


def _network(model: str | Network) -> Network:
    network = Network(model, model) if isinstance(model, str) else model
    name = network.name
    if not timm.is_model(name):
        known = [*VARIANTS, *timm.list_models()]
        raise InputError(f"model: no model {name!r}; {nearest(name, known, '`sightline list` shows ours')}")
    own = arguments(name) if name in VARIANTS else network.args
    for key in network.args:
        if key not in own:
            raise InputError(f"model: {name} has no argument {key!r}; {nearest(key, own, 'it has ' + ', '.join(own))}")
    return network


def _texts(value: Names) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _split(value: Numbers) -> tuple[str, ...]:
    """One value, a sequence of them, or a text with commas."""
    values = () if value is None else (value,) if isinstance(value, str | int) else value
    return tuple(part.strip() for each in values for part in str(each).split(",") if part.strip())


def _choices(name: str, value: Names, known: tuple[str, ...]) -> tuple[str, ...]:
    parts = _split(value)
    for part in parts:
        if part not in known:
            remedy = nearest(part, known, f"expected one of {', '.join(known)}")
            raise InputError(f"{name}: {part!r} is not known; {remedy}")
    return tuple(dict.fromkeys(parts))


def _numbers(name: str, value: Numbers) -> tuple[int, ...]:
    for part in _split(value):
        if not part.isdigit() or not 0 < int(part) <= 1_000_000:
            raise InputError(f"{name}: expected numbers from 1 to 1000000; got {part!r}")
    return tuple(int(part) for part in _split(value))
