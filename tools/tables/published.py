"""Figures of the public code, measured elsewhere: one NVIDIA H200, torch 2.11, bfloat16, plain calls.

They are shown next to the figures of a run and never mixed with them. None means not measured.
"""

from collections.abc import Sequence

from sightline.bench.results import Row
from sightline.bench.tables import Table, number

SOURCE = "public code, measured elsewhere (H200, torch 2.11, bfloat16; SOFT in TF32)"

Figures = dict[str, tuple[float, float | None, float]]  # by case
# Milliseconds between the qkv and the output projection: forward, compiled forward, forward and backward.
PUBLIC_OPS: Figures = {
    "deit_tiny_224": (0.644, 0.242, 2.301),
    "deit_tiny_384": (0.959, 0.407, 2.699),
    "deit_tiny_640": (1.266, 0.522, 3.597),
    "deit_tiny_1024": (0.902, None, 2.381),
    "deit_tiny_2048": (1.227, None, 2.742),
    "swin_tiny_stage1": (2.080, None, 6.219),
    "swin_tiny_stage2": (1.185, None, 3.444),
    "wide_4096": (1.841, None, 5.526),
    "wide_16384": (7.007, None, 21.36),
    "wide_65536": (7.182, None, 21.88),
}
# Images per second: forward, compiled forward, training with a quarter of the batch (SOFT, in TF32, with half).
PUBLIC_MODELS: Figures = {
    "inline_deit_tiny 224": (20899, 40260, 2015),
    "inline_deit_tiny 384": (7130, 14778, 1310),
    "inline_deit_tiny 640": (2736, 5790, 585),
    "inline_deit_tiny 1024": (994, 2081, 147),
    "inline_deit_tiny 2048": (223, 493, 35),
    "inline_swin_tiny 224": (6776, 14782, 1195),
    "inline_pvt_small 224": (5689, 12651, 756),
    "inline_cswin_tiny 224": (3999, 9675, 592),
    "soft_tiny 224": (3029, None, 820),
}
COLUMNS = {
    "op": {("forward", False): 0, ("forward", True): 1, ("forward+backward", False): 2},
    "model": {("forward", False): 0, ("forward", True): 1, ("train", False): 2},
}


def recorded(kind: str, case: str, mode: str, compiled: bool) -> float | None:
    """The figure of a case of the table: milliseconds of operators, images per second of models."""
    figures = (PUBLIC_OPS if kind == "op" else PUBLIC_MODELS).get(case)
    column = COLUMNS[kind].get((mode, compiled))
    return None if figures is None or column is None else figures[column]


def public_figure(row: Row) -> float | None:
    """The figure for the case of a row.

    Only for our own candidate, on CUDA and in the dtype that the public code was measured in.
    """
    own = row.candidate.startswith("inline") if row.kind == "op" else row.candidate == row.case.split()[0]
    dtype = "tf32" if row.candidate.startswith("soft") else "bfloat16"
    same = own and row.device == "cuda" and row.dtype == dtype
    return recorded(row.kind, row.case, row.mode, row.compiled) if same else None


def with_public(table: Table, rows: Sequence[Row]) -> Table:
    """A table of some rows with the public figures as its last column."""
    title, digits = ("public ms*", 3) if rows[0].kind == "op" else ("public images/s*", 0)
    lines = [[*line, number(public_figure(row), digits)] for line, row in zip(table.rows, rows, strict=True)]
    return table._replace(titles=(*table.titles, title), rows=lines)
