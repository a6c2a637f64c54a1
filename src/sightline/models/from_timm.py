"""timm's vision transformers and Swin as sightline models: their arguments, read off the modules, and their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import Attention as TimmAttention
from timm.layers import AttentionPoolLatent, GluMlp, LayerScale, Mlp, PatchEmbed, RmsNorm
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sightline.models.base import Arguments
from sightline.models.weights.identify import arguments, nearest_variants, recognize
from sightline.models.weights.layouts import to_native
from sightline.models.weights.reader import State
from sightline.util.errors import FileError, InputError

VIT = "inline_vit_tiny"  # the variant whose arguments describe any plain vision transformer
ACTIVATIONS = {
    "GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "QuickGELUJit": "quick_gelu", "SiLU": "silu",
    "ReLU": "relu",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A softmax model in the terms of sightline.

    Args:
        name: what it is called.
        variant: the registered model with its structure.
        args: arguments of the variant.
        state: the weights under our names.
    """

    name: str
    variant: str
    args: Arguments
    state: State

    @property
    def depths(self) -> tuple[int, ...]:
        """Blocks of every stage."""
        depths: int | Sequence[int] = {**arguments(self.variant), **self.args}["depths"]
        return (depths,) if isinstance(depths, int) else tuple(depths)

    @property
    def attention(self) -> Any:
        """The pattern of its attention."""
        return self.args.get("attention", arguments(self.variant)["attention"])


def read_vit(model: VisionTransformer) -> Source:
    """timm's VisionTransformer, with or without a token of distillation.

    Raises:
        InputError: names a part that our models do not have.
    """
    name = _name(model)
    if problem := _problem(model):
        raise InputError(f"model: {name} cannot be linearized: {problem}")
    block, embed, pool = model.blocks[0], model.patch_embed, model.attn_pool
    hidden, dim = block.mlp.fc1.out_features, model.embed_dim
    kind, eps = next(iter(_norms(model)))
    grid, patch = embed.grid_size, embed.patch_size[0]
    args: Arguments = {
        "img_size": (grid[0] * patch, grid[1] * patch),
        "patch_size": patch,
        "in_chans": embed.proj.in_channels,
        "num_classes": model.num_classes,
        "global_pool": model.global_pool,
        "attention": "softmax",
        "embed_dims": (dim,),
        "num_heads": (block.attn.num_heads,),
        "depths": (len(model.blocks),),
        "mlp_ratio": hidden / dim if int(dim * (hidden / dim)) == hidden else (hidden + 0.5) / dim,
        "qkv_bias": block.attn.qkv.bias is not None,
        "qk_norm": not isinstance(block.attn.q_norm, nn.Identity),
        "proj_bias": block.attn.proj.bias is not None,
        "init_values": (block.ls1.init_values or 1e-5) if isinstance(block.ls1, LayerScale) else None,
        "class_token": model.cls_token is not None,
        "distilled": isinstance(model, VisionTransformerDistilled),
        "reg_tokens": 0 if model.reg_token is None else model.reg_token.shape[1],
        "pos_embed": "none" if model.pos_embed is None else "learn",
        "no_embed_class": model.no_embed_class,
        "pre_norm": not isinstance(model.norm_pre, nn.Identity),
        "final_norm": not (isinstance(model.norm, nn.Identity) and isinstance(model.fc_norm, nn.Identity)),
        "fc_norm": not isinstance(model.fc_norm, nn.Identity),
        "pool_include_prefix": model.pool_include_prefix,
        "norm_layer": kind,
        "norm_eps": eps,
        "act_layer": "gelu" if isinstance(block.mlp, GluMlp) else _activation(block.mlp.act),
        "swiglu_mlp": isinstance(block.mlp, GluMlp),
    }
    square = args["img_size"][0] == args["img_size"][1]
    args |= {"img_size": args["img_size"][0]} if square else {}
    assert pool is None or isinstance(pool, AttentionPoolLatent)
    return Source(name, VIT, args, _native(model))


def _native(model: VisionTransformer) -> State:
    """The weights under our names."""
    state: State = dict(model.state_dict())
    if model.pos_embed is not None:
        rows: Tensor = state.pop("pos_embed")
        grid = model.patch_embed.grid_size
        prefix = rows.shape[1] - grid[0] * grid[1]
        state["pos_embed.weight"] = rows[:, prefix:].unflatten(1, grid)
        if prefix:
            state["pos_embed.prefix"] = rows[:, :prefix]
    if isinstance(model, VisionTransformerDistilled) and model.num_classes:
        # The mean of two classifiers is one of both tokens.
        state["head.weight"] = torch.cat([state["head.weight"], state.pop("head_dist.weight")], 1) / 2
        state["head.bias"] = (state["head.bias"] + state.pop("head_dist.bias")) / 2
    return state


def _problem(model: VisionTransformer) -> str:
    """What of a model ours do not have; "" if nothing."""
    embed, pool = model.patch_embed, model.attn_pool
    if type(model) not in (VisionTransformer, VisionTransformerDistilled):
        return f"it is a {type(model).__name__}"
    if type(embed) is not PatchEmbed:
        return f"its patches are made by a {type(embed).__name__}"
    if other := [block for block in model.blocks if type(block) is not Block]:
        return f"its blocks are {type(other[0]).__name__}s"
    attns: Sequence[Any] = [block.attn for block in model.blocks]
    mlps: Sequence[Any] = [block.mlp for block in model.blocks]
    for attn in attns:
        if type(attn) is not TimmAttention:
            return f"its attention is a {type(attn).__name__}, not softmax attention"
        if attn.gate is not None or not isinstance(attn.norm, nn.Identity):
            return "its attention has a gate or a norm of the output"
        if attn.attn_dim != model.embed_dim or attn.num_heads != attns[0].num_heads:
            return "its heads are not those of all blocks, or not as wide as the model"
    for mlp in mlps:
        gated = isinstance(mlp, GluMlp) and isinstance(mlp.act, nn.SiLU) and not mlp.gate_last
        if not (gated or (type(mlp) is Mlp and _activation(mlp.act))) or not isinstance(mlp.norm, nn.Identity):
            return f"its MLP is a {type(mlp).__name__} with {type(mlp.act).__name__}"
        if (mlp.fc1.bias is None) != (attns[0].proj.bias is None):
            return "its MLP and its attention differ in their biases"
    if embed.patch_size[0] != embed.patch_size[1] or not isinstance(embed.norm, nn.Identity):
        return "its patches are not square, or have a norm"
    if len(_norms(model)) != 1:
        return "its norms differ, or are neither layer norms nor RMS norms"
    if model.global_pool == "prr" or (pool is not None and not _plain_pool(pool, attns[0].num_heads)):
        return f"its pooling is a {type(pool).__name__}, or not as timm's models have it"
    return ""


def _plain_pool(pool: Any, heads: int) -> bool:
    if type(pool) is not AttentionPoolLatent or not isinstance(pool.q, nn.Linear):
        return False
    same = pool.latent_len == 1 and pool.num_heads == heads and pool.pos_embed is None
    return bool(same) and isinstance(pool.q_norm, nn.Identity)


def _norms(model: nn.Module) -> set[tuple[str, float]]:
    """Type and epsilon of all norms; an empty name for one that ours do not have."""
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm | RmsNorm):
            found.add(("layernorm" if isinstance(module, nn.LayerNorm) else "rmsnorm", float(module.eps)))
        elif name.rpartition(".")[2] in ("norm1", "norm2") and not isinstance(module, nn.Identity):
            found |= {("", 0.0), ("", 1.0)}
    return found


def _activation(act: nn.Module) -> str:
    """The name of an activation; "" if ours do not have it."""
    name = ACTIVATIONS.get(type(act).__name__, "")
    return "gelu_tanh" if name == "gelu" and getattr(act, "approximate", "none") == "tanh" else name


def read_swin(model: nn.Module) -> Source:
    """timm's SwinTransformer.

    Raises:
        InputError: it is not the first version, or has other parts than ours.
    """
    name = _name(model)
    try:
        family, _, _, layout = recognize(dict(model.state_dict()))
        if family != "swin" or None in layout.num_heads:
            raise InputError(f"model: {name} cannot be linearized: its weights are not those of Swin")
        identity = nearest_variants(layout, family)[0]
    except FileError as error:
        raise InputError(f"model: {name} cannot be linearized: {error}") from error
    args = {**identity.kwargs, "num_classes": layout.num_classes}
    return Source(name, identity.name, args, to_native(dict(model.state_dict()), family))


def _name(model: nn.Module) -> str:
    cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    return str(cfg.get("architecture") or type(model).__name__)
