"""From images to tokens and from a map to a coarser one. Sizes that do not divide are zero padded at the far edge."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from torch import Tensor, nn

from sightline.layers.core import Grid


def pad_to_multiple(x: Tensor, size: tuple[int, ...] | int) -> Tensor:
    """Zero pad the last two sides of (B, C, h, w) up to multiples of `size`."""
    sy, sx = (size, size) if isinstance(size, int) else size
    bottom, right = -x.shape[-2] % sy, -x.shape[-1] % sx
    return F.pad(x, (0, right, 0, bottom)) if bottom or right else x


def to_tokens(x: Tensor) -> tuple[Tensor, Grid]:
    """(B, C, h, w) -> (B, h * w, C) and (h, w)."""
    return x.flatten(2).transpose(1, 2), (x.shape[-2], x.shape[-1])


def to_map(x: Tensor, grid: Grid) -> Tensor:
    """(B, h * w, C) -> (B, C, h, w), channels last in memory."""
    return x.reshape(x.shape[0], grid[0], grid[1], x.shape[2]).permute(0, 3, 1, 2)


@register_notrace_module
class PatchEmbed(nn.Module):
    """Patches that do not overlap -> tokens; an optional layer norm follows."""

    def __init__(self, in_chans: int, dim: int, patch_size: int, norm: bool = False) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        x = pad_to_multiple(x, self.proj.stride)
        x, grid = self._product(x) if x.is_cuda else to_tokens(self.proj(x))
        return self.norm(x), grid

    def _product(self, x: Tensor) -> tuple[Tensor, Grid]:
        """The convolution as one matrix product of the patches; cuDNN is many times slower for patches of 16."""
        size_y, size_x = self.proj.kernel_size
        grid = (x.shape[2] // size_y, x.shape[3] // size_x)
        patches = x.unflatten(3, (grid[1], size_x)).unflatten(2, (grid[0], size_y))  # B C h p w p
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # B hw Cpp
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias), grid


@register_notrace_module
class ConvEmbed(nn.Module):
    """One overlapping strided convolution and a layer norm (CSwin's stem and merges)."""

    def __init__(self, in_chans: int, dim: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, kernel, stride, padding)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        x, grid = to_tokens(self.proj(pad_to_multiple(x, self.proj.stride)))
        return self.norm(x), grid


@register_notrace_module
class ConvBNEmbed(nn.Module):
    """A chain of 3x3 convolutions with batch norm and ReLU (SOFT's stem and merges)."""

    def __init__(self, in_chans: int, dims: list[int], strides: list[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for dim, stride in zip(dims, strides, strict=True):
            layers += [nn.Conv2d(in_chans, dim, 3, stride, 1), nn.BatchNorm2d(dim), nn.ReLU(inplace=True)]
            in_chans = dim
        self.proj = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        if x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)
        plain = self.training or torch.is_grad_enabled() or not x.is_cuda
        return to_tokens(self.proj(x) if plain else self._folded(x))

    def _folded(self, x: Tensor) -> Tensor:
        """The same for inference: the batch norms, fixed then, as part of the convolutions."""
        for conv, norm in zip(self.proj[0::3], self.proj[1::3], strict=True):
            x = F.relu(_conv_norm(x, conv, norm))
        return x


def _conv_norm(x: Tensor, conv: Any, norm: Any) -> Tensor:
    """A convolution and the batch norm after it as one convolution, with the norm's running statistics."""
    gain = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    bias = norm.bias + (conv.bias - norm.running_mean) * gain
    return F.conv2d(x, conv.weight * gain[:, None, None, None], bias, conv.stride, conv.padding)


@register_notrace_module
class PatchMerge(nn.Module):
    """Swin's merge: 2x2 neighbours side by side, layer norm, linear."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_dim)
        self.reduction = nn.Linear(4 * in_dim, dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        x = pad_to_multiple(x, 2).permute(0, 2, 3, 1)  # B h w C
        batch, height, width, dim = x.shape
        # Published order of the four: top left, bottom left, top right, bottom right.
        x = x.reshape(batch, height // 2, 2, width // 2, 2, dim).permute(0, 1, 3, 4, 2, 5)
        x = x.reshape(batch, height // 2 * (width // 2), 4 * dim)
        return self.reduction(self.norm(x)), (height // 2, width // 2)
