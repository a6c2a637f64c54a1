"""The published layouts and their names in sightline, as renaming rules.

A family is a list of (pattern, replacement) pairs, applied to every key in turn; projections that sightline keeps as
one tensor are joined afterwards.
"""

import math
import re
from collections.abc import Callable

import torch

from sightline.models.weights.reader import State
from sightline.util.errors import FileError

# Keys that only one published family has; the first family with such a key is taken.
SIGNATURES = {
    "cswin": r"^stage1_conv_embed\.0\.weight$|^stage\d\.\d+\.attns\.\d\.get_v\.",
    "soft": r"^patch_embed1\.proj\.0\.weight$|^block\d\.\d+\.att\.mha\.",
    "pvt": r"^patch_embed1\.proj\.weight$|^block\d\.\d+\.attn\.kv\.weight$",
    "swin": r"^layers\.0\.blocks\.0\.norm1\.weight$|^layers\.\d\.blocks\.\d+\.attn\.qkv\.weight$",
    "deit": r"^blocks\.0\.attn\.(?:qkv|core)\.",
}
# The same for checkpoints that sightline itself wrote.
NATIVE_SIGNATURES = {
    "hybrid": r"^stages\.0\.blocks\.0\.conv1\.weight$",
    "cswin": r"^stages\.0\.blocks\.0\.attn\.branches\.",
    "soft": r"^stages\.0\.embed\.proj\.0\.weight$",
    "pvt": r"^stages\.0\.pos_embed\.weight$",
    "swin": r"^stages\.1\.embed\.reduction\.weight$",
    "deit": r"^pos_embed\.weight$",
}

Rule = tuple[str, str | Callable[[re.Match[str]], str]]

_RESIDUAL: list[Rule] = [(r"\.residual\.0\.", ".core.residual.fc1."), (r"\.residual\.2\.", ".core.residual.fc2.")]
_STAGED: list[Rule] = [
    (r"^patch_embed(\d)\.", lambda m: f"stages.{int(m[1]) - 1}.embed."),
    (r"^pos_embed(\d)$", lambda m: f"stages.{int(m[1]) - 1}.pos_embed"),
    (r"^block(\d)\.(\d+)\.", lambda m: f"stages.{int(m[1]) - 1}.blocks.{m[2]}."),
    (r"^cls_token$", "stages.3.cls_token"),
]
RULES: dict[str, list[Rule]] = {
    "deit": _RESIDUAL,
    "pvt": [*_STAGED, *_RESIDUAL, (r"\.attn\.norm\.", ".attn.sr_norm.")],
    "swin": [
        (r"^patch_embed\.", "stages.0.embed."),
        (r"^layers\.(\d)\.downsample\.", lambda m: f"stages.{int(m[1]) + 1}.embed."),
        (r"^layers\.", "stages."),
        (r"\.relative_position_bias_table$", ".position_bias.table"),
        *_RESIDUAL,
    ],
    "cswin": [
        (r"^stage1_conv_embed\.0\.", "stages.0.embed.proj."),
        (r"^stage1_conv_embed\.2\.", "stages.0.embed.norm."),
        (r"^merge(\d)\.conv\.", r"stages.\1.embed.proj."),
        (r"^merge(\d)\.norm\.", r"stages.\1.embed.norm."),
        (r"^stage(\d)\.(\d+)\.", lambda m: f"stages.{int(m[1]) - 1}.blocks.{m[2]}."),
        (r"\.(\d+)\.(qkv|proj)\.(weight|bias)$", r".\1.attn.\2.\3"),
        (r"\.attns\.(\d)\.get_v\.", r".attn.branches.\1.lepe."),
        (r"\.attns\.(\d)\.", r".attn.branches.\1."),
        *_RESIDUAL,
    ],
    "soft": [
        *_STAGED,
        (r"\.att\.mha\.attn\.Qlandmark_op\.", ".attn.core.landmarks.conv."),
        (r"\.att\.mha\.attn\.Qnorm_act\.0\.", ".attn.core.landmarks.norm."),
        (r"\.att\.mha\.attn\.conv\.", ".attn.core.local.conv."),
        (r"\.att\.mha\.ff\.", ".attn.proj."),
        (r"\.att\.mha\.", ".attn."),
        (r"\.att\.ff(\d)\.", r".mlp.fc\1."),
        (r"\.att\.norm", ".norm"),
    ],
}
# Index and mask buffers follow from the architecture.
IGNORED = re.compile(r"relative_position_index$|attn_mask$|relative_coords_table$")
# Projections that sightline keeps as one tensor, in order, and their name there.
JOINED = [("attn.q.", "attn.kv.", "attn.qkv."), ("attn.W_q.", "attn.W_v.", "attn.qkv.")]


def family_of(keys: list[str]) -> tuple[str, bool] | None:
    """(family, whether the keys are sightline's own), or None if no family fits."""
    for table, native in ((NATIVE_SIGNATURES, True), (SIGNATURES, False)):
        for family, pattern in table.items():
            if any(re.search(pattern, key) for key in keys):
                return family, native
    return None


def rename(key: str, family: str) -> str:
    """The name in sightline of a key of a published checkpoint, before projections are joined."""
    for pattern, replacement in RULES[family]:
        key = re.sub(pattern, replacement, key)
    return key


def to_native(state: State, family: str) -> State:
    """A published state dict under sightline's names and shapes."""
    if family == "swin":
        state = _from_timm_swin(state)
    renamed = {rename(key, family): value for key, value in state.items() if not IGNORED.search(key)}
    return _split_positions(_join(renamed))


def _from_timm_swin(state: State) -> State:
    """timm's Swin, where patch merging belongs to the following stage and the head is `head.fc`."""
    if any(key.startswith("layers.0.downsample.") for key in state):
        return state
    merges = re.compile(r"^layers\.(\d+)\.downsample\.")
    return {
        merges.sub(lambda m: f"layers.{int(m[1]) - 1}.downsample.", key).replace("head.fc.", "head."): value
        for key, value in state.items()
    }


def _join(state: State) -> State:
    """Join split projections; halves that do not match stay apart and are reported as unexpected."""
    out = dict(state)
    for first, second, whole in JOINED:
        for key in (key for key in state if first in key):
            other = key.replace(first, second)
            if other in state and state[key].shape[1:] == state[other].shape[1:]:
                out[key.replace(first, whole)] = torch.cat([out.pop(key), out.pop(other)])
    return out


def _split_positions(state: State) -> State:
    """Position rows (1, prefix + n * n, C) -> the table (1, n, n, C) and the prefix rows."""
    out: State = {}
    for key, value in state.items():
        if not key.endswith("pos_embed"):
            out[key] = value
            continue
        rows = value.shape[1] if value.ndim == 3 else 0
        side = math.isqrt(rows)
        prefix = rows - side * side
        if value.ndim != 3 or prefix > 1 or side == 0:
            raise FileError(f"{key} has shape {tuple(value.shape)}; expected (1, n * n or 1 + n * n, C)")
        if prefix:
            out[f"{key}.prefix"] = value[:, :prefix]
        out[f"{key}.weight"] = value[:, prefix:].unflatten(1, (side, side))
    return out
