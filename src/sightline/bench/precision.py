"""The data types to measure. `tf32` is float32 whose matrix products and convolutions may round to TF32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# Largest error of a row of an output or gradient against the float32 reference, relative to the norm of the row. Half
# precision rounds the inputs of matrix products and the result; its unit roundoff is 2^-8 (bfloat16) or 2^-11
# (float16), and a few of them add up.
TOLERANCES: dict[str, float] = {"float32": 1e-4, "tf32": 5e-3, "float16": 4e-3, "bfloat16": 2e-2}

# A model rounds after every layer, a dozen blocks of the above. This check finds wrong kernels, not rounding.
MODEL_FACTOR = 10


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Run float32 matrix products and convolutions in TF32 for "tf32", in full float32 for all others."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    fast = dtype == "tf32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
