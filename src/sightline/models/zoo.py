"""Every model: its arguments, its published figures, its registration with timm.

A variant is a row of `VARIANTS`. `top1` is the ImageNet-1K accuracy in percent, `params` in millions and `flops` in
billions of multiply-adds, as published; measured, without `top1`, for models of our own.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
)
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    load_pretrained,
    register_model,
    resolve_pretrained_cfg,
)
from torch import nn

from sightline.models.base import Arguments, FeatureNet, VisionModel
from sightline.models.cswin import CSwin
from sightline.models.deit import DeiT
from sightline.models.hybrid import Hybrid
from sightline.models.pvt import PVT
from sightline.models.soft import Soft
from sightline.models.swin import Swin
from sightline.models.weights.description import record_arguments, recorded_arguments
from sightline.models.weights.packaged import packaged
from sightline.models.weights.published import PUBLISHED, Cached, fetch
from sightline.models.weights.reader import read_weights


@dataclass(frozen=True)
class Variant:
    """A published model with its figures, or one of our `own` with measured ones."""

    cls: type[VisionModel]
    params: float
    flops: float | None
    top1: float | None
    size: int = 224
    crop_pct: float = 0.9
    args: Arguments = field(default_factory=dict)
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD
    own: bool = False

    def cfg(self, url: str) -> Arguments:
        """timm's description of weights and input."""
        side = self.size // self.cls.final_stride
        return {
            "url": url,
            "num_classes": 1000,
            "input_size": (3, self.size, self.size),
            "pool_size": (side, side),
            "fixed_input_size": False,
            "crop_pct": self.crop_pct,
            "interpolation": "bicubic",
            "mean": self.mean,
            "std": self.std,
            "first_conv": self.cls.first_conv,
            "classifier": "head",
        }


def _deit(dim: int, heads: int) -> Arguments:
    return {"embed_dims": dim, "num_heads": heads}


_SWIN_BASE = {
    "embed_dims": 128,
    "num_heads": (4, 8, 16, 32),
    "depths": (2, 2, 18, 2),
    "attention": "inline,inline,inline*2+softmax,softmax",
}
_CSWIN_BASE = {"embed_dims": 96, "num_heads": (4, 8, 16, 32), "depths": (3, 6, 29, 2)}
_SOFT_MEDIUM = {"embed_dims": (64, 128, 288, 512), "num_heads": (2, 4, 9, 16), "depths": (1, 3, 29, 5)}
_SOFT_HUGE = {"embed_dims": (64, 128, 352, 512), "num_heads": (2, 4, 11, 16), "depths": (1, 5, 49, 5)}
_PLUS = {"attention": "soft_norm,soft_norm,soft_norm,softmax"}

VARIANTS: dict[str, Variant] = {
    "inline_deit_tiny": Variant(DeiT, 6.48, 1.1, 74.5),
    "inline_deit_small": Variant(DeiT, 16.73, 5.0, 80.2, 288, args=_deit(320, 10)),
    "inline_deit_base": Variant(DeiT, 23.80, 17.2, 82.3, 448, args=_deit(384, 12)),
    "inline_vit_tiny": Variant(  # timm's vit_tiny_patch16_224 with another attention
        DeiT,
        5.72,
        1.29,
        None,
        args={**_deit(192, 3), "attention": "inline(residual=false,softmax_prefix=true,agents=49,window=7)"},
        mean=IMAGENET_INCEPTION_MEAN,
        std=IMAGENET_INCEPTION_STD,
        own=True,
    ),
    "inline_pvt_tiny": Variant(PVT, 12.03, 2.0, 78.2),
    "inline_pvt_small": Variant(PVT, 21.56, 3.9, 82.0, args={"depths": (3, 4, 6, 3)}),
    "inline_pvt_medium": Variant(PVT, 37.62, 6.9, 83.2, args={"depths": (3, 4, 18, 3)}),
    "inline_pvt_large": Variant(PVT, 51.15, 10.2, 83.6, args={"depths": (3, 8, 27, 3)}),
    "inline_swin_tiny": Variant(Swin, 29.22, 4.5, 82.4),
    "inline_swin_small": Variant(
        Swin, 49.79, 8.7, 83.6, args={"depths": (2, 2, 18, 2), "attention": "inline,inline,softmax,softmax"}
    ),
    "inline_swin_base": Variant(Swin, 88.35, 15.4, 84.1, args=_SWIN_BASE),
    "inline_swin_base_384": Variant(Swin, 88.47, None, None, 384, 1.0, args={**_SWIN_BASE, "window_size": 12}),
    "inline_cswin_tiny": Variant(CSwin, 20.60, 4.3, 83.2),
    "inline_cswin_small": Variant(CSwin, 33.03, 6.8, 83.8, args={"depths": (3, 6, 29, 2)}),
    "inline_cswin_base": Variant(CSwin, 73.41, 14.9, 84.5, args=_CSWIN_BASE),
    "inline_cswin_base_384": Variant(CSwin, 73.41, 46.3, 85.7, 384, 1.0, {**_CSWIN_BASE, "stripes": (1, 2, 12, 12)}),
    "inline_conv_small": Variant(Hybrid, 29.03, 5.2, None, own=True),
    "soft_tiny": Variant(Soft, 13.07, 1.9, 79.3),
    "soft_small": Variant(Soft, 24.1, 3.3, 82.2, args={"depths": (1, 3, 7, 4)}),
    "soft_medium": Variant(Soft, 45.81, 7.2, 82.9, args=_SOFT_MEDIUM),
    "soft_large": Variant(Soft, 64.70, 11.0, 83.1, args={"depths": (1, 3, 40, 5)}),
    "soft_huge": Variant(Soft, 87.11, 16.3, 83.3, args=_SOFT_HUGE),
    "soft_norm_tiny": Variant(Soft, 13.07, 1.9, 79.4, args=_PLUS),
    "soft_norm_small": Variant(Soft, 24.1, 3.3, 82.4, args={**_PLUS, "depths": (1, 3, 7, 4)}),
    "soft_norm_medium": Variant(Soft, 45.81, 7.2, 83.1, args={**_PLUS, **_SOFT_MEDIUM}),
    "soft_norm_large": Variant(Soft, 64.70, 11.0, 83.3, args={**_PLUS, "depths": (1, 3, 40, 5)}),
    "soft_norm_huge": Variant(Soft, 87.11, 16.3, 83.4, args={**_PLUS, **_SOFT_HUGE}),
}


def _url(name: str) -> str:
    """Where the weights of a model are, as timm's registry has it; empty without weights."""
    return f"package:{name}" if packaged(name) else PUBLISHED[name].url if name in PUBLISHED else ""


default_cfgs = generate_default_cfgs({name: variant.cfg(_url(name)) for name, variant in VARIANTS.items()})
ELSEWHERE = ("source", "file", "state_dict", "hf_hub_id")  # entries of timm's description that name other weights


def create(
    name: str,
    pretrained: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Arguments | None = None,
    cache_dir: str | Path | None = None,
    **kwargs: object,
) -> nn.Module:
    """Build the variant `name`; keyword arguments replace those of its row. `timm.create_model` ends here.

    `pretrained` loads the published weights, or those that `pretrained_cfg` names: a folder or repository that
    `timm.models.save_for_hf` wrote, whose arguments are taken too.
    """
    variant = VARIANTS[name]
    cfg = resolve_pretrained_cfg(name, pretrained_cfg, pretrained_cfg_overlay)
    given = {**recorded_arguments(cfg.notes, variant.cls), **kwargs}
    build: Callable[..., nn.Module] = variant.cls
    if pretrained:
        build = partial(_with_weights, variant.cls, _source(name, cfg.to_dict(), cache_dir))
    with torch.device(device) if device is not None else nullcontext():
        model = build_model_with_cfg(
            build,
            name,
            pretrained=False,  # `build` loads the weights
            pretrained_cfg=pretrained_cfg,
            pretrained_cfg_overlay=pretrained_cfg_overlay,
            feature_cfg={
                "out_indices": variant.cls.default_features,
                "feature_cls": FeatureNet,
                "output_fmt": "NCHW",
            },
            **{"img_size": variant.size, **variant.args, **given},
        )
    record_arguments(model, given)
    return model if dtype is None else model.to(dtype)


def download(name: str, folder: str | Path | None = None) -> Cached:
    """The published weights of a model as a file, from the cache or the network; see `weights.published.fetch`."""
    return fetch(name, partial(create, name, device="meta"), folder)


def _source(name: str, cfg: Arguments, cache_dir: str | Path | None) -> Callable[[VisionModel], object]:
    """What loads the weights that timm's description `cfg` names into a model."""
    if any(cfg.get(key) for key in ELSEWHERE) or cfg.get("url") != default_cfgs[name].default.url:
        # Channels and classifier are fitted by load_state_dict, which unlike timm takes any number of channels.
        cfg = {**cfg, "first_conv": None, "classifier": None}
        return lambda model: load_pretrained(model, cfg, cache_dir=cache_dir)
    state = read_weights(packaged(name) or download(name, cache_dir).path).state
    return lambda model: model.load_state_dict(state)


def _with_weights(cls: type[VisionModel], load: Callable[[VisionModel], object], **kwargs: Any) -> VisionModel:
    model = cls(**kwargs)
    if not next(model.parameters()).is_meta:
        with torch.device("cpu"):  # where the weights are, whatever the device of the model
            load(model)
    return model


def _entrypoint(name: str) -> Callable[..., nn.Module]:
    def build(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return create(name, pretrained, **kwargs)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"{name}, {VARIANTS[name].params} M parameters at {VARIANTS[name].size} px."
    return build


for _name in VARIANTS:
    globals()[_name] = register_model(_entrypoint(_name))
