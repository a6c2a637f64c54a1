"""From what was asked for to plans: names, sizes and presets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    OpCase,
    default_batch,
)
from sightline.bench.networks import Network, rivals
from sightline.bench.operators import MOVE, RIVALS, SDPA, OpEntrant
from sightline.bench.run_models import ModelPlan
from sightline.bench.run_ops import OpPlan
from sightline.layers.pattern import parse_pattern
from sightline.models.weights.identify import arguments
from sightline.models.zoo import VARIANTS

OP_RIVALS = (SDPA, MOVE)
MODEL_RIVALS = ("softmax", "none", "timm")
OP_MODES = ("forward", "forward+backward")
COMPILE = {"no": (False,), "yes": (True,), "both": (False, True)}


@dataclass(frozen=True)
class Wish:
    """What to measure; an empty field is the usual choice. `compiled` is a value of `COMPILE`."""

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
    rivals: tuple[str, ...] | None = None


def op_plans(wish: Wish) -> list[OpPlan]:
    """Mechanisms and rivals on shapes; by default InLine on every shape of the table."""
    compiled = True in wish.compiled
    chosen: list[OpEntrant] = []
    for mechanism in wish.mechanisms or ("inline",):
        chosen += operators.entrants(mechanism, wish.device, wish.backends, compiled)
    chosen += [RIVALS[name] for name in (OP_RIVALS if wish.rivals is None else wish.rivals)]
    return run_ops.plans(wish.shapes or tuple(OP_CASES.values()), wish.modes or OP_MODES, wish.dtypes, chosen)


def model_plans(wish: Wish) -> list[ModelPlan]:
    """Networks and their rivals at sizes; by default every row of the table (on a CPU the small one)."""
    kinds = MODEL_RIVALS if wish.rivals is None else wish.rivals
    cases = []
    for network, case in _model_cases(wish):
        entrants = [*_mechanisms(network, wish.attentions), *rivals(network, kinds)]
        if wish.windows:
            entrants = [each for entrant in entrants for each in _windowed(entrant, wish.windows)]
        cases.append((case, _unique(entrants)))
    return run_models.plans(cases, wish.modes or ("forward", "train"), wish.dtypes, wish.compiled)


def _mechanisms(network: Network, attentions: Sequence[str]) -> list[Network]:
    """A network as it is, and once with each of the other mechanisms where it is one of sightline's."""
    if network.name not in VARIANTS:
        return [network]
    depths = {**arguments(network.name), **network.args}["depths"]
    for text in attentions:
        parse_pattern(text, (depths,) if isinstance(depths, int) else depths)
    others = [Network(f"{network.label} {text}", network.name, {**network.args, "attention": text})
              for text in attentions]  # fmt: skip
    return [network, *others]


def _model_cases(wish: Wish) -> list[tuple[Network, ModelCase]]:
    table = MODEL_CASES if wish.device.type == "cuda" else CPU_CASES
    if not wish.networks and not wish.sizes and not wish.batches:
        return [(Network(case.model, case.model), case) for case in table]
    networks = wish.networks or (Network("inline_deit_tiny", "inline_deit_tiny"),)
    found = []
    for network in networks:
        sizes = wish.sizes or (_usual_size(network),)
        batches = wish.batches or tuple(default_batch(network.name, size, wish.device.type) for size in sizes)
        if len(batches) == 1:
            batches *= len(sizes)
        if len(batches) != len(sizes):
            raise ValueError(f"--batch-size: {len(batches)} values for {len(sizes)} sizes; give one, or one a size")
        found += [(network, ModelCase(network.label, size, batch)) for size, batch in zip(sizes, batches, strict=True)]
    return found


def _usual_size(network: Network) -> Grid:
    if network.name in VARIANTS:
        return VARIANTS[network.name].size, VARIANTS[network.name].size
    return tuple(timm.get_pretrained_cfg(network.name, allow_unregistered=True).input_size[1:])


def _windowed(network: Network, windows: Sequence[int]) -> list[Network]:
    """A network once for each window where it has windows: those of softmax, or of the map for all others."""
    own = arguments(network.name) if network.name in VARIANTS else {}
    if "map_window" not in own:
        return [network]
    sides: list[dict[str, Any]] = [{"window_size": side, "map_window": side} for side in windows]
    return [Network(f"{network.label} w{s['map_window']}", network.name, {**network.args, **s}) for s in sides]


def _unique(networks: Sequence[Network]) -> list[Network]:
    return list({network.label: network for network in networks}.values())


def goal_plans(what: str, device: torch.device, dtypes: tuple[str, ...]) -> list[OpPlan | ModelPlan]:
    """What the goals need and no more. `what` is "ops", "models" or "all"."""
    found: list[OpPlan | ModelPlan] = []
    if what in ("ops", "all") and device.type == "cuda":
        found += op_plans(Wish(device, dtypes, backends=("triton",)))
    if what in ("models", "all"):
        found += _goal_models(device, dtypes)
    return found


def _goal_models(device: torch.device, dtypes: tuple[str, ...]) -> list[ModelPlan]:
    deit = Network("inline_deit_tiny", "inline_deit_tiny")
    if device.type == "cpu":
        return model_plans(Wish(device, dtypes, ("forward",), rivals=("none",)))
    compared = [(case, [deit, *rivals(deit, ("none", "timm"))]) for case in MODEL_CASES if case.model == deit.name]
    public = [(case, [Network(case.model, case.model)]) for case in MODEL_CASES if case.model.startswith("inline")]
    modes = ("forward", "train")
    return [*run_models.plans(compared, modes, dtypes, (True,)), *run_models.plans(public, modes, dtypes, (False,))]


def soft_plans(
    what: str, device: torch.device, ops: tuple[str, ...], models: tuple[str, ...]
) -> list[OpPlan | ModelPlan]:
    """SOFT and SOFT++: attention at rising lengths, and the models. `ops` and `models` are the types of each."""
    found: list[OpPlan | ModelPlan] = []
    if what in ("ops", "all"):
        mechanisms = ("soft", "soft_norm")
        found += op_plans(Wish(device, ops, mechanisms=mechanisms, shapes=SOFT_OPS, rivals=(SDPA,)))
    if what in ("models", "all"):
        kinds = {"soft_tiny": ("none", "timm")}  # the rivals of soft_norm_tiny are the same
        networks = [(case, Network(case.model, case.model)) for case in SOFT_MODELS]
        cases = [(case, [one, *rivals(one, kinds.get(one.name, ()))]) for case, one in networks]
        found += run_models.plans(cases, ("forward", "train"), models, (False, True))
    return found
