"""The table of attention mechanisms. New behavior is a new row here."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sightline.layers.core import Core
from sightline.layers.mechanisms.baselines.angular import LinearAngularCore
from sightline.layers.mechanisms.baselines.efficient import EfficientCore
from sightline.layers.mechanisms.baselines.enhanced import EnhancedCore
from sightline.layers.mechanisms.baselines.focused import FocusedCore
from sightline.layers.mechanisms.baselines.hedgehog import HedgehogCore
from sightline.layers.mechanisms.baselines.hydra import HydraCore
from sightline.layers.mechanisms.baselines.linformer import LinformerCore
from sightline.layers.mechanisms.baselines.mala import MalaCore
from sightline.layers.mechanisms.baselines.nystromformer import NystromformerCore
from sightline.layers.mechanisms.baselines.performer import PerformerCore
from sightline.layers.mechanisms.baselines.rala import RalaCore
from sightline.layers.mechanisms.baselines.ttt import TttCore
from sightline.layers.mechanisms.inline import InlineCore
from sightline.layers.mechanisms.linear import LinearCore
from sightline.layers.mechanisms.none import NoCore
from sightline.layers.mechanisms.soft import SoftCore, SoftNormCore
from sightline.layers.mechanisms.softmax import SoftmaxCore

Option = bool | int | float | str


@dataclass(frozen=True)
class Mechanism:
    """A row of the table.

    Args:
        core: the module.
        cost: multiply-adds per head: N tokens, d = head dim, C channels, m landmarks, features or projected keys.
        paper: where it comes from.
        weights: the weight of key j for query i, and the local term.
        use: when to choose it.
        least: the smallest value of an option that is a whole number; 0 for those that are not listed.
    """

    core: type[Core]
    cost: str
    paper: str
    weights: str = ""
    use: str = ""
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Option]:
        """The options of the mechanism with their defaults: the keyword-only arguments of its core."""
        parameters = inspect.signature(self.core.__init__).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def extra_parameters(self) -> int:
        """Parameters of an attention layer beyond those of softmax, in a block of DeiT-Tiny.

        Negative if queries are their own keys and need no projection.
        """
        dim = 192
        with torch.device("meta"):
            own = sum(p.numel() for p in self.core(dim, 6, 16).parameters())
        return own - (dim * dim + dim if self.core.shared_qk else 0)


MECHANISMS: dict[str, Mechanism] = {
    "softmax": Mechanism(
        SoftmaxCore,
        "N^2 d",
        "Attention Is All You Need (2017)",
        "exp(q_i.k_j / sqrt d) / sum_j",
        "the baseline; small maps, windows, public weights",
    ),
    "linear": Mechanism(
        LinearCore,
        "N d^2",
        "Transformers are RNNs (2020)",
        "phi(q_i).phi(k_j) / sum_j",
        "the plain linear baseline",
    ),
    "inline": Mechanism(
        InlineCore,
        "N d^2",
        "Bridging the Divide: Reconsidering Softmax and Linear Attention (2024)",
        "(phi(q_i).phi(k_j) - mean_j) / (N sqrt d) + 1/N;  + 3x3 of v by weights of the image",
        "first choice at high resolution; fused kernels",
    ),
    "soft": Mechanism(
        SoftCore,
        "N m d + m^3",
        "SOFT: Softmax-free Transformer with Linear Complexity (2021)",
        "p_i A^+ p_j, p = exp(-|q - l|^2 / 2) to landmarks l;  + dwconv(v)",
        "Gaussian attention; the SOFT models",
        {"iterations": 1},
    ),
    "soft_norm": Mechanism(
        SoftNormCore,
        "N m d + m^3",
        "Softmax-free Linear Transformers, SOFT++ (2024)",
        "p_i D^-1/2 A^+ D^-1/2 p_j;  + dwconv(v)",
        "SOFT whose weights keep their size; dense tasks",
        {"iterations": 1},
    ),
    "linformer": Mechanism(
        LinformerCore,
        "N m d",
        "Linformer: Self-Attention with Linear Complexity (2020)",
        "softmax over m keys E k of values F v",
        "images of one size; E and F are resampled to others",
        {"rank": 1},
    ),
    "performer": Mechanism(
        PerformerCore,
        "N m d",
        "Rethinking Attention with Performers (2021)",
        "phi(q_i).phi(k_j) / sum_j, phi random with mean product exp(q.k / sqrt d)",
        "estimates softmax with the weights of a softmax model, to within noise",
    ),
    "nystromformer": Mechanism(
        NystromformerCore,
        "N m d + m^3",
        "Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention (2021)",
        "softmax(q l_k) softmax(l_q l_k)^+ softmax(l_q k), l means of segments",
        "approximates softmax with the weights of a softmax model, exact as m tends to N",
        {"landmarks": 1, "iterations": 1},
    ),
    "hydra": Mechanism(
        HydraCore,
        "N d",
        "Hydra Attention: Efficient Attention with Many Heads (2022)",
        "q_ic k_jc / (|q_i| |k_j|) in every channel c",
        "the least cost; one channel per head",
    ),
    "efficient": Mechanism(
        EfficientCore,
        "N d^2",
        "Efficient Attention: Attention with Linear Complexities (2021)",
        "softmax_channels(q_i).softmax_tokens(k)_j",
        "rows sum to one without a quotient",
    ),
    "linear_angular": Mechanism(
        LinearAngularCore,
        "N d^2",
        "Castling-ViT: Linear-Angular Attention (2023)",
        "(1/2 + cos(q_i, k_j) / pi) / sum_j;  + dwconv(v)",
        "smooth positive weights with a local term",
    ),
    "enhanced": Mechanism(
        EnhancedCore,
        "N d^2 + N d C",
        "EfficientViT: Multi-Scale Linear Attention (2023)",
        "relu(q_i).relu(k_j) / sum_j, for the tokens and for aggregated ones",
        "dense tasks that need several scales",
        {"kernel": 1},
    ),
    "focused": Mechanism(
        FocusedCore,
        "N d^2",
        "FLatten Transformer: Focused Linear Attention (2023)",
        "phi(q_i).phi(k_j) / sum_j, phi = |x| x^p / |x^p| of x = relu;  + dwconv(v)",
        "the most accurate of the earlier linear ones in the InLine paper",
        {"power": 1},
    ),
    "hedgehog": Mechanism(
        HedgehogCore,
        "N d^2",
        "The Hedgehog & the Porcupine: Expressive Linear Attentions with Softmax Mimicry (2024)",
        "phi(q_i).phi(k_j) / sum_j, phi = softmax_channels([W x, -W x])",
        "learned features for the weights of a softmax model",
    ),
    "rala": Mechanism(
        RalaCore,
        "N d^2",
        "Breaking the Low-Rank Dilemma of Linear Attention (2025)",
        "a_j phi(q_i).phi(k_j) / sum_j, phi = elu + 1, a = softmax_tokens(mean phi(q).phi(k) / sqrt d)",
        "keys by their importance to the image; a gate of the output",
    ),
    "mala": Mechanism(
        MalaCore,
        "N d^2",
        "Rectifying Magnitude Neglect in Linear Attention (2025)",
        "((1 + 1/z_i) phi(q_i).phi(k_j) / sqrt d - z_i) / N, phi = elu + 1, z_i = mean_j phi(q_i).phi(k_j) / sqrt d",
        "longer queries are sharper, as with softmax; InLine's fused kernels",
    ),
    "ttt": Mechanism(
        TttCore,
        "N d^2",
        "ViT^3: Unlocking Test-Time Training in Vision (2026)",
        "no weights: (q_i V) * silu(q_i G), matrices V and G after a gradient step on all pairs k_j, v_j",
        "a network that learns the image in place of a matrix of weights; no attention maps",
    ),
    "none": Mechanism(
        NoCore,
        "0",
        "no attention: values straight to the projection",
        "1 for j = i, else 0",
        "the limit of speed, and a test of what attention brings",
    ),
}


def describe_mechanisms() -> list[dict[str, Any]]:
    """Every mechanism with its options and their defaults, as JSON can hold it."""
    return [
        {
            "name": name,
            "options": mechanism.options,
            "cost": mechanism.cost,
            "extra_params": mechanism.extra_parameters(),
            "windowed": mechanism.core.windowed,
            "weights": mechanism.weights,
            "paper": mechanism.paper,
            "use": mechanism.use,
        }
        for name, mechanism in MECHANISMS.items()
    ]
