"""Benchmark cases as data: shapes of operators, and models with their image and batch sizes."""

import math
import re
from dataclasses import dataclass, replace

from sightline.util.errors import InputError

Grid = tuple[int, int]
CPU_BATCH, CUDA_BATCH = 8, 512  # images of 224 x 224; fewer if larger


@dataclass(frozen=True)
class OpCase:
    """Tensors of (batch, tokens, heads, dim): `prefix` tokens, then those of `grid` = (height, width)."""

    name: str
    batch: int
    heads: int
    dim: int
    grid: Grid
    prefix: int = 0

    @property
    def tokens(self) -> int:
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def channels(self) -> int:
        return self.heads * self.dim

    def __str__(self) -> str:
        """As `parse_shape` reads it."""
        return f"{self.batch},{self.heads},{self.dim},{self.prefix}+{self.grid[0]}x{self.grid[1]}"


@dataclass(frozen=True)
class ModelCase:
    """A model on images of `size` = (height, width); training uses a quarter of `batch`, or `train_batch`."""

    model: str
    size: Grid
    batch: int
    train_batch: int = 0

    @property
    def name(self) -> str:
        """Such as "inline_deit_tiny 224" or "inline_deit_tiny 384x640"."""
        height, width = self.size
        return f"{self.model} {height}" if height == width else f"{self.model} {height}x{width}"


OP_CASES: dict[str, OpCase] = {
    case.name: case
    for case in (
        OpCase("deit_tiny_224", 256, 6, 32, (14, 14), 1),
        OpCase("deit_tiny_384", 128, 6, 32, (24, 24), 1),
        OpCase("deit_tiny_640", 64, 6, 32, (40, 40), 1),
        OpCase("deit_tiny_1024", 16, 6, 32, (64, 64), 1),
        OpCase("deit_tiny_2048", 4, 6, 32, (128, 128), 1),
        OpCase("swin_tiny_stage1", 128, 3, 32, (56, 56)),
        OpCase("swin_tiny_stage2", 128, 6, 32, (28, 28)),
        OpCase("wide_4096", 8, 16, 64, (64, 64)),
        OpCase("wide_16384", 8, 16, 64, (128, 128)),
        OpCase("wide_65536", 2, 16, 64, (256, 256)),
    )
}

MODEL_CASES: tuple[ModelCase, ...] = (
    ModelCase("inline_deit_tiny", (224, 224), 512),
    ModelCase("inline_deit_tiny", (384, 384), 256),
    ModelCase("inline_deit_tiny", (640, 640), 128),
    ModelCase("inline_deit_tiny", (1024, 1024), 32),
    ModelCase("inline_deit_tiny", (2048, 2048), 8),
    ModelCase("inline_swin_tiny", (224, 224), 256),
    ModelCase("inline_pvt_small", (224, 224), 256),
    ModelCase("inline_cswin_tiny", (224, 224), 256),
    ModelCase("soft_tiny", (224, 224), 128, 64),
)

CPU_CASES: tuple[ModelCase, ...] = (
    ModelCase("inline_deit_tiny", (224, 224), 8),
    ModelCase("inline_deit_tiny", (512, 512), 2),
    ModelCase("inline_deit_tiny", (1024, 1024), 1),
)

# SOFT: the attention of soft_tiny's first stage, with about the same total number of tokens at every length.
SOFT_TOKENS = 128 * 3136
SOFT_GRIDS: tuple[Grid, ...] = (*((28, 28 * p) for p in range(1, 9)), (128, 128), (192, 192), (256, 256))
SOFT_OPS = {f"soft_{h * w}": OpCase(f"soft_{h * w}", SOFT_TOKENS // (h * w), 2, 32, (h, w)) for h, w in SOFT_GRIDS}
SOFT_MODELS = (ModelCase("soft_norm_tiny", (224, 224), 128, 64),)

# What the presets measure on a device, as arguments of `benchmark`.
DEIT_SIZES = {"model": "inline_deit_tiny", "img_size": (224, 384, 640, 1024, 2048)}
SOFT_COMPARED = {"compile": "both", "dtype": ("bfloat16", "tf32")}  # the public figures of SOFT are in TF32
PRESETS: dict[tuple[str, str], tuple[dict[str, object], ...]] = {
    ("goals", "cuda"): (
        {"what": "ops", "backend": "triton"},
        {"what": "models", **DEIT_SIZES, "baselines": ("none", "timm"), "compile": "yes"},
        {"what": "models", **DEIT_SIZES, "baselines": ()},
        {"what": "models", "model": ("inline_swin_tiny", "inline_pvt_small", "inline_cswin_tiny"), "baselines": ()},
        {"what": "cold_start"},
    ),
    ("goals", "cpu"): ({"what": "models", "mode": "forward", "baselines": "none"},),
    ("soft", "cuda"): (
        {"what": "ops", "mechanism": ("soft", "soft_norm"), "shape": tuple(SOFT_OPS), "baselines": "sdpa"},
        {"what": "models", "model": "soft_tiny", "baselines": ("none", "timm"), **SOFT_COMPARED},
        {"what": "models", "model": "soft_norm_tiny", "baselines": (), **SOFT_COMPARED},  # baselines as of soft_tiny
    ),
}

# What people do with a model, by parts: plain calls, eager, compiled and with CUDA graphs, in the preset "plain".
ALL_WAYS = "no,yes,reduce-overhead"
DEIT = {"what": "models", "model": "inline_deit_tiny"}
COMPARED = {"baselines": ("none", "timm")}
HOST_SHAPE = "8,6,32,1+14x14"  # so small that the GPU does not limit a call
PLAIN: dict[str, tuple[dict[str, object], ...]] = {
    "train": (
        {**DEIT, **COMPARED, "img_size": 224, "batch_size": 1024, "mode": "train", "compile": ALL_WAYS},
        {**DEIT, **COMPARED, "img_size": 1024, "batch_size": 64, "mode": "train", "compile": "yes"},
    ),
    "inference": ({**DEIT, **COMPARED, "img_size": (224, 384, 1024), "mode": "forward", "compile": "yes"},),
    "latency": ({**DEIT, **COMPARED, "img_size": (224, 1024), "mode": "latency", "compile": ALL_WAYS},),
    "host": (
        {"what": "modules", "shape": HOST_SHAPE, "mode": "forward", "compile": "both"},
        {"what": "ops", "shape": HOST_SHAPE, "backend": "triton", "baselines": ("sdpa", "product"), "compile": "both"},
    ),
    "families": tuple(
        {"what": "models", "model": name, "img_size": 224, "batch_size": 4 * batch, "mode": "train", "baselines": (),
         "compile": "yes,reduce-overhead"}
        for name, batch in (("inline_swin_tiny", 128), ("inline_pvt_small", 128), ("inline_cswin_tiny", 64),
                            ("soft_tiny", 64))
    ),
    "peers": (
        {"what": "ops", "mechanism": ("inline", "linear"), "shape": ("deit_tiny_224", "deit_tiny_1024"),
         "backend": "triton", "baselines": ("sdpa", "flex_attention", "flash_bla")},
        {"what": "models", "model": ("inline_pvt_tiny", "inline_pvt_small"), "img_size": (512, 1024),
         "mode": "forward", "baselines": "peer", "compile": "yes"},
    ),
}  # fmt: skip
# On a CPU there are no CUDA graphs, and no kernels of peers.
PLAIN_CPU: dict[str, tuple[dict[str, object], ...]] = {
    "train": ({**DEIT, **COMPARED, "img_size": 224, "batch_size": 32, "mode": "train", "compile": "both"},),
    "inference": ({**DEIT, **COMPARED, "img_size": (224, 512), "mode": "forward", "compile": "yes"},),
    "latency": ({**DEIT, **COMPARED, "img_size": (224, 1024), "mode": "latency", "compile": "both"},),
    "host": (
        {"what": "modules", "shape": HOST_SHAPE, "mode": "forward", "compile": "both"},
        {"what": "ops", "shape": HOST_SHAPE, "baselines": ("sdpa", "product"), "compile": "both"},
    ),
}
PRESETS |= {
    ("plain", device): tuple({"part": name, **each} for name, part in parts.items() for each in part)
    for device, parts in (("cuda", PLAIN), ("cpu", PLAIN_CPU))
}

# timm's model of the same size and family, to compare with.
TIMM_BASELINES: dict[str, str] = {
    "inline_deit_tiny": "deit_tiny_patch16_224",
    "inline_deit_small": "deit_small_patch16_224",
    "inline_deit_base": "deit_base_patch16_224",
    "inline_swin_tiny": "swin_tiny_patch4_window7_224",
    "inline_swin_small": "swin_small_patch4_window7_224",
    "inline_swin_base": "swin_base_patch4_window7_224",
    "inline_pvt_tiny": "pvt_v2_b1",
    "inline_pvt_small": "pvt_v2_b2",
    "inline_pvt_medium": "pvt_v2_b3",
    "inline_pvt_large": "pvt_v2_b4",
    "soft_tiny": "pvt_v2_b1",
    "soft_small": "pvt_v2_b2",
}
# timm's models with linear attention, by ours of about as many parameters.
TIMM_PEERS: dict[str, str] = {
    "inline_deit_tiny": "efficientvit_b1",
    "inline_pvt_tiny": "efficientvit_b1",
    "inline_pvt_small": "efficientvit_b2",
    "inline_swin_tiny": "efficientvit_b2",
}


def parse_shape(text: str) -> OpCase:
    """Read the name of a case, or "B,H,D,TOKENS" with TOKENS as 197, 14x14 or 1+14x14 (a class token, then the grid).

    A plain number becomes a square grid if it is a square, a class token and a square grid if that fits, otherwise the
    grid closest to a square. Example: `parse_shape("2,6,32,1+7x9")` has 64 tokens.
    """
    known = OP_CASES | SOFT_OPS
    if text in known:
        return known[text]
    match = re.fullmatch(
        r"(\d{1,7}),(\d{1,5}),(\d{1,5}),(?:(\d{1,4})\+)?(\d{1,7})(?:x(\d{1,7}))?", text.replace(" ", "")
    )
    if match is None:
        raise InputError(f"shape: expected batch,heads,dim,tokens, e.g. 256,6,32,1+14x14, or one of "
                         f"{', '.join(OP_CASES)}; got {text!r}")  # fmt: skip
    batch, heads, dim, prefix, first, second = (int(part) if part else 0 for part in match.groups())
    grid = (first, second)
    if not match[6]:
        splits = [(first, prefix)] if match[4] else [(first, 0), (first - 1, 1)]
        square = (split for split in splits if split[0] > 0 and math.isqrt(split[0]) ** 2 == split[0])
        tokens, prefix = next(square, splits[0])
        grid = _closest_to_square(tokens)
    if min(batch, heads, dim, *grid) < 1:
        raise InputError(f"shape: expected numbers from 1 up in batch,heads,dim,tokens; got {text!r}")
    return OpCase(text.replace(" ", ""), batch, heads, dim, grid, prefix)


def _closest_to_square(tokens: int) -> Grid:
    height = next((side for side in range(math.isqrt(tokens), 0, -1) if tokens % side == 0), 0)
    return (height, tokens // height) if height else (0, 0)


def model_case(label: str, model: str, size: Grid, device: str) -> ModelCase:
    """The case of the table if it has one; otherwise about as many pixels per batch as its first row."""
    for case in (*MODEL_CASES, *SOFT_MODELS) if device == "cuda" else CPU_CASES:
        if (case.model, case.size) == (model, size):
            return replace(case, model=label)
    most = CUDA_BATCH if device == "cuda" else CPU_BATCH
    return ModelCase(label, size, max(1, int(most * 224**2 / (size[0] * size[1]))))
