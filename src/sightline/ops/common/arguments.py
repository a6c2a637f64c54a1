"""Tensors as kernels take them: the pointer and the strides together, in a NamedTuple.

Triton unpacks the tuple: `q.ptr` and `q.token` in a kernel are a pointer and a number, specialized like plain
arguments.
"""

from typing import NamedTuple

from sightline.ops.common.launching import Layout


class Tokens(NamedTuple):
    """(batch, tokens, heads, head_dim): the pointer, and the stride of each dimension."""

    ptr: Layout | None
    batch: int
    token: int
    head: int
    dim: int

    @classmethod
    def of(cls, layout: Layout | None) -> "Tokens":
        return cls(None, 0, 0, 0, 0) if layout is None else cls(layout, *layout.strides)


class Filters(NamedTuple):
    """(images, channels, 3, 3) whose nine taps are evenly spaced: the pointer, and strides of image, channel, tap."""

    ptr: Layout | None
    image: int
    channel: int
    tap: int

    @classmethod
    def of(cls, layout: Layout | None) -> "Filters":
        if layout is None:
            return cls(None, 0, 0, 0)
        return cls(layout, layout.strides[0], layout.strides[1], layout.strides[3])


class HeadFilters(NamedTuple):
    """(heads, 1, k, k): the pointer, and strides of head, row and column."""

    ptr: Layout
    head: int
    row: int
    column: int

    @classmethod
    def of(cls, layout: Layout) -> "HeadFilters":
        return cls(layout, layout.strides[0], layout.strides[2], layout.strides[3])
