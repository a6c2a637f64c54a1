"""From a request to plans: models, sizes, windows and presets."""

from collections.abc import Sequence

import timm
import torch

from sightline.bench import operators, run_models, run_ops
from sightline.bench.cases import (
    CPU_CASES,
    MODEL_CASES,
    OP_CASES,
    SOFT_MODELS,
    SOFT_OPS,
    Grid,
    ModelCase,
    default_batch,
)
from sightline.bench.networks import Network, baselines
from sightline.bench.operators import BASELINES, SDPA, OpCandidate
from sightline.bench.request import MODEL_BASELINES, OP_BASELINES, OP_MODES, Request
from sightline.bench.run_models import ModelPlan
from sightline.bench.run_ops import OpPlan
from sightline.layers.pattern import parse_pattern
from sightline.models.weights.identify import arguments
from sightline.models.zoo import VARIANTS
from sightline.util.errors import InputError

Plan = OpPlan | ModelPlan


def make_plans(request: Request) -> tuple[list[Plan], tuple[str, ...]]:
    """The plans of operators and models, and the mechanisms whose cold start is measured."""
    mechanisms = (request.mechanisms or ("inline",)) if "cold_start" in request.what else ()
    cuda = request.device.type == "cuda"
    if request.preset == "soft":
        if not cuda:
            raise InputError("preset: soft needs a GPU, got device cpu; use --device cuda")
        return soft_plans(request.what, request.device, request.dtypes, request.model_dtypes), ()
    if request.preset == "goals":
        plans = goal_plans(request.what, request.device, request.dtypes)
        mechanisms = mechanisms if cuda else ()
        if not plans and not mechanisms:
            raise InputError(f"preset: goals has none of {', '.join(request.what)} for a CPU; use --device cuda")
        return plans, mechanisms
    found: list[Plan] = []
    if "ops" in request.what:
        found += op_plans(request)
    if "models" in request.what:
        found += model_plans(request)
    return found, mechanisms


def op_plans(request: Request) -> list[OpPlan]:
    """Mechanisms and baselines on shapes; by default InLine on every shape of the table."""
    compiled = True in request.compiled
    chosen: list[OpCandidate] = []
    for mechanism in request.mechanisms or ("inline",):
        chosen += operators.candidates(mechanism, request.device, request.backends, compiled)
    chosen += [BASELINES[name] for name in (OP_BASELINES if request.baselines is None else request.baselines)]
    return run_ops.plans(request.shapes or tuple(OP_CASES.values()), request.modes or OP_MODES, request.dtypes, chosen)


def model_plans(request: Request) -> list[ModelPlan]:
    """Networks and their baselines at sizes; by default every row of the table (on a CPU the small one)."""
    kinds = MODEL_BASELINES if request.baselines is None else request.baselines
    cases = []
    for network, case in _model_cases(request):
        candidates = [*_mechanisms(network, request.attentions), *baselines(network, kinds)]
        if request.windows:
            candidates = [each for network in candidates for each in _windowed(network, request.windows)]
        cases.append((case, _unique(candidates)))
    return run_models.plans(cases, request.modes or ("forward", "train"), request.dtypes, request.compiled)


def _mechanisms(network: Network, attentions: Sequence[str]) -> list[Network]:
    """A network as it is and, if it is one of sightline's, once with each of the other mechanisms."""
    if network.name not in VARIANTS:
        return [network]
    depths = {**arguments(network.name), **network.args}["depths"]
    for text in attentions:
        parse_pattern(text, (depths,) if isinstance(depths, int) else depths)
    others = [Network(f"{network.label} {text}", network.name, {**network.args, "attention": text})
              for text in attentions]  # fmt: skip
    return [network, *others]


def _model_cases(request: Request) -> list[tuple[Network, ModelCase]]:
    table = MODEL_CASES if request.device.type == "cuda" else CPU_CASES
    if not request.networks and not request.sizes and not request.batches:
        return [(Network(case.model, case.model), case) for case in table]
    networks = request.networks or (Network("inline_deit_tiny", "inline_deit_tiny"),)
    found = []
    for network in networks:
        sizes = request.sizes or (_usual_size(network),)
        batches = request.batches or tuple(default_batch(network.name, size, request.device.type) for size in sizes)
        if len(batches) == 1:
            batches *= len(sizes)
        if len(batches) != len(sizes):
            raise InputError(f"batch_size: expected one, or one per size; got {len(batches)} for {len(sizes)} sizes")
        found += [(network, ModelCase(network.label, size, batch)) for size, batch in zip(sizes, batches, strict=True)]
    return found


def _usual_size(network: Network) -> Grid:
    if network.name in VARIANTS:
        return VARIANTS[network.name].size, VARIANTS[network.name].size
    return tuple(timm.get_pretrained_cfg(network.name, allow_unregistered=True).input_size[1:])


def _windowed(network: Network, windows: Sequence[int]) -> list[Network]:
    """A network once per window size if it has windows: those of softmax, or of the feature map for all others."""
    own = arguments(network.name) if network.name in VARIANTS else {}
    if "map_window" not in own:
        return [network]
    sides = [{"window_size": side, "map_window": side} for side in windows]
    return [Network(f"{network.label} w{s['map_window']}", network.name, {**network.args, **s}) for s in sides]


def _unique(networks: Sequence[Network]) -> list[Network]:
    return list({network.label: network for network in networks}.values())


def goal_plans(what: Sequence[str], device: torch.device, dtypes: tuple[str, ...]) -> list[Plan]:
    """Everything the goals need, and no more."""
    found: list[Plan] = []
    if "ops" in what and device.type == "cuda":
        found += op_plans(Request(device, dtypes, backends=("triton",)))
    if "models" in what:
        found += _goal_models(device, dtypes)
    return found


def _goal_models(device: torch.device, dtypes: tuple[str, ...]) -> list[ModelPlan]:
    deit = Network("inline_deit_tiny", "inline_deit_tiny")
    if device.type == "cpu":
        return model_plans(Request(device, dtypes, ("forward",), baselines=("none",)))
    compared = [(case, [deit, *baselines(deit, ("none", "timm"))]) for case in MODEL_CASES if case.model == deit.name]
    public = [(case, [Network(case.model, case.model)]) for case in MODEL_CASES if case.model.startswith("inline")]
    modes = ("forward", "train")
    return [*run_models.plans(compared, modes, dtypes, (True,)), *run_models.plans(public, modes, dtypes, (False,))]


def soft_plans(what: Sequence[str], device: torch.device, ops: tuple[str, ...], models: tuple[str, ...]) -> list[Plan]:
    """SOFT and SOFT++: attention at increasing lengths, and the models. `ops` and `models` are the dtypes of each."""
    found: list[Plan] = []
    if "ops" in what:
        mechanisms = ("soft", "soft_norm")
        found += op_plans(Request(device, ops, mechanisms=mechanisms, shapes=SOFT_OPS, baselines=(SDPA,)))
    if "models" in what:
        kinds = {"soft_tiny": ("none", "timm")}  # the baselines of soft_norm_tiny are the same
        networks = [(case, Network(case.model, case.model)) for case in SOFT_MODELS]
        cases = [(case, [one, *baselines(one, kinds.get(one.name, ()))]) for case, one in networks]
        found += run_models.plans(cases, ("forward", "train"), models, (False, True))
    return found
