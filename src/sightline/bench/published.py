"""Figures of the public code, measured elsewhere: one NVIDIA H200, torch 2.11, bfloat16, plain calls.

They are shown next to the figures of a run and never mixed with them. None means not measured.
"""

from typing import NamedTuple

from sightline.bench.results import Row

SOURCE = "public code, measured elsewhere (H200, torch 2.11, bfloat16; SOFT in TF32)"


class OpFigures(NamedTuple):
    """Milliseconds of the public InLine code between the qkv and the output projection."""

    forward: float
    compiled_forward: float | None
    forward_backward: float


class ModelFigures(NamedTuple):
    """Images per second of the public model; training with a quarter of the batch, SOFT (in TF32) with half."""

    forward: float
    compiled_forward: float | None
    train: float


PUBLIC_OPS: dict[str, OpFigures] = {
    "deit_tiny_224": OpFigures(0.644, 0.242, 2.301),
    "deit_tiny_384": OpFigures(0.959, 0.407, 2.699),
    "deit_tiny_640": OpFigures(1.266, 0.522, 3.597),
    "deit_tiny_1024": OpFigures(0.902, None, 2.381),
    "deit_tiny_2048": OpFigures(1.227, None, 2.742),
    "swin_tiny_stage1": OpFigures(2.080, None, 6.219),
    "swin_tiny_stage2": OpFigures(1.185, None, 3.444),
    "wide_4096": OpFigures(1.841, None, 5.526),
    "wide_16384": OpFigures(7.007, None, 21.36),
    "wide_65536": OpFigures(7.182, None, 21.88),
}

PUBLIC_MODELS: dict[str, ModelFigures] = {
    "inline_deit_tiny 224": ModelFigures(20899, 40260, 2015),
    "inline_deit_tiny 384": ModelFigures(7130, 14778, 1310),
    "inline_deit_tiny 640": ModelFigures(2736, 5790, 585),
    "inline_deit_tiny 1024": ModelFigures(994, 2081, 147),
    "inline_deit_tiny 2048": ModelFigures(223, 493, 35),
    "inline_swin_tiny 224": ModelFigures(6776, 14782, 1195),
    "inline_pvt_small 224": ModelFigures(5689, 12651, 756),
    "inline_cswin_tiny 224": ModelFigures(3999, 9675, 592),
    "soft_tiny 224": ModelFigures(3029, None, 820),
}


def public_ms(case: str, mode: str, compiled: bool) -> float | None:
    """The public operator's milliseconds for a shape of `OP_CASES`."""
    figures = PUBLIC_OPS.get(case)
    if figures is None or mode == "train" or (compiled and mode != "forward"):
        return None
    if mode == "forward":
        return figures.compiled_forward if compiled else figures.forward
    return figures.forward_backward


def public_images(case: str, mode: str, compiled: bool) -> float | None:
    """The public model's images per second for "MODEL SIZE"."""
    figures = PUBLIC_MODELS.get(case)
    if figures is None or mode == "forward+backward" or (compiled and mode == "train"):
        return None
    if mode == "forward":
        return figures.compiled_forward if compiled else figures.forward
    return figures.train


def public_figure(row: Row) -> float | None:
    """The public code in the case of a row: milliseconds or images per second.

    Only for our own candidate, on CUDA and in the dtype that the public code was measured in.
    """
    dtype = "tf32" if row.candidate.startswith("soft") else "bfloat16"
    if row.device != "cuda" or row.dtype != dtype:
        return None
    if row.kind == "op":
        return public_ms(row.case, row.mode, row.compiled) if row.candidate.startswith("inline") else None
    return public_images(row.case, row.mode, row.compiled) if row.candidate == row.case.split()[0] else None
