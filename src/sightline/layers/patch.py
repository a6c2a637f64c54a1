"""From images to tokens and from a map to a coarser one. Sizes that do not divide are zero padded at the far edge."""

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from torch import Tensor, nn

from sightline import backend
from sightline.layers.core import Grid, changed, members
from sightline.ops.activated import activated_linear
from sightline.ops.checks import ceil_div, is_exporting, is_symbolic, padding
from sightline.ops.patches import gather_patches

PATCH = 32  # numbers of a patch of few channels: a matrix product needs rows of a multiple of 16 bytes


def pad_to_multiple(x: Tensor, size: tuple[int, ...] | int) -> Tensor:
    """Zero pad the last two sides of (B, C, h, w) up to multiples of `size`."""
    sy, sx = (size, size) if isinstance(size, int) else size
    bottom, right = padding(x.shape[-2], sy), padding(x.shape[-1], sx)
    return F.pad(x, (0, right, 0, bottom)) if is_symbolic(bottom, right) or bottom or right else x


def any_size(x: Tensor) -> bool:
    """Whether a graph for maps (B, C, h, w) of any size is being exported."""
    return is_exporting() and is_symbolic(*x.shape[2:])


def picked_patches(x: Tensor, size: tuple[int, int], by_column: bool = False) -> tuple[Tensor, Grid]:
    """(B, C, h, w), channels last in memory -> (B, patches, numbers of a patch by row, column and channel), and the
    grid of the patches. `by_column` has the columns of a patch before its rows.

    For an exported graph of any size: tokens are picked by a kernel or a list, where padding and cutting would divide
    by symbols to index each element.
    """
    (height, width), (down, across) = x.shape[2:], size
    grid = (ceil_div(height, down), ceil_div(width, across))
    if backend.patch_kernel(x):
        return gather_patches(to_tokens(x)[0].contiguous(), (height, width), size, by_column), grid
    rows = torch.arange(grid[0] * down, device=x.device).view(grid[0], 1, down, 1)
    columns = torch.arange(grid[1] * across, device=x.device).view(1, grid[1], 1, across)
    inside = ((rows < height) & (columns < width)).flatten()
    index = rows.clamp(max=height - 1) * width + columns.clamp(max=width - 1)
    tokens = to_tokens(x)[0][:, index.flatten()]
    tokens = tokens.where(inside[:, None], tokens.new_zeros(()))
    tokens = tokens.unflatten(1, (grid[0] * grid[1], down, across))
    return (tokens.transpose(2, 3) if by_column else tokens).flatten(2), grid


def to_tokens(x: Tensor) -> tuple[Tensor, Grid]:
    """(B, C, h, w) -> (B, h * w, C) and (h, w)."""
    return x.flatten(2).transpose(1, 2), (x.shape[-2], x.shape[-1])


def to_map(x: Tensor, grid: Grid) -> Tensor:
    """(B, h * w, C) -> (B, C, h, w), channels last in memory."""
    return x.reshape(x.shape[0], grid[0], grid[1], x.shape[2]).permute(0, 3, 1, 2)


@register_notrace_module
class PatchEmbed(nn.Module):
    """Patches -> tokens by a strided convolution; an optional layer norm follows.

    Args:
        stride: pixels from patch to patch.
        kernel: pixels along a patch; by default `stride`, for patches that do not overlap.
        bias: of the convolution.
    """

    def __init__(
        self, in_chans: int, dim: int, stride: int, kernel: int | None = None, padding: int = 0, norm: bool = False,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, kernel or stride, stride, padding, bias=bias)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        apart = self.proj.kernel_size == self.proj.stride
        if apart and backend.patch_product(x):
            x, grid = self._product(x)
        else:
            x, grid = to_tokens(self.proj(pad_to_multiple(x, self.proj.stride)))
        return self.norm(x), grid

    def _product(self, x: Tensor) -> tuple[Tensor, Grid]:
        """The convolution as one matrix product of the patches; cuDNN is many times slower for patches of 16."""
        size_y, size_x = self.proj.kernel_size
        if any_size(x) and x.shape[1] >= PATCH:
            patches, grid = picked_patches(x, (size_y, size_x))
            return F.linear(patches, self.proj.weight.permute(0, 2, 3, 1).flatten(1), self.proj.bias), grid
        x = pad_to_multiple(x, self.proj.stride)
        grid = (x.shape[2] // size_y, x.shape[3] // size_x)
        patches = x.unflatten(3, (grid[1], size_x)).unflatten(2, (grid[0], size_y))  # B C h p w p
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # B hw Cpp
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias), grid


@register_notrace_module
class ConvBNEmbed(nn.Module):
    """A chain of 3x3 convolutions with batch norm and ReLU (SOFT's stem and merges).

    Args:
        in_chans: channels of the map.
        dims: output channels of the convolutions.
        strides: of the convolutions.
        blur: the last convolution has no stride; its output is blurred by (1, 2, 1) / 4 each way and halved.
    """

    def __init__(self, in_chans: int, dims: list[int], strides: list[int], blur: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for dim, stride in zip(dims, [*strides[:-1], 1] if blur else strides, strict=True):
            layers += [nn.Conv2d(in_chans, dim, 3, stride, 1), nn.BatchNorm2d(dim), nn.ReLU(inplace=True)]
            in_chans = dim
        self.proj = nn.Sequential(*layers)
        self.blur = nn.Sequential(nn.AvgPool2d(2, stride=1, padding=1), nn.AvgPool2d(2)) if blur else nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        if not backend.fused_stem(x) or not self._plain():
            x = self.proj(x)
        else:
            x = self._by_layers(x) if self.training or torch.is_grad_enabled() else self._folded(x)
        return to_tokens(self.blur(x))

    def _plain(self) -> bool:
        """Whether all layers are as they were built, without hooks."""
        plain = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)
        return all(type(layer) in plain and not changed(layer) for layer in members(self.proj))

    def _layers(self) -> list[tuple[nn.Conv2d, nn.BatchNorm2d, nn.Module]]:
        found, layers = [], members(self.proj)
        for conv, norm, act in zip(layers[0::3], layers[1::3], layers[2::3], strict=True):
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(norm, nn.BatchNorm2d)
            found.append((conv, norm, act))
        return found

    def _by_layers(self, x: Tensor) -> Tensor:
        """The chain for training on a GPU: few channels by a product of patches, the others channels last."""
        for conv, norm, act in self._layers():
            if few_channels(conv):
                x = F.linear(*_patches(x, conv.weight, conv), conv.bias).permute(0, 3, 1, 2)
            else:
                x = conv(x.contiguous(memory_format=torch.channels_last))
            x = act(norm(x))
        return x

    def _folded(self, x: Tensor) -> Tensor:
        """The same for inference: the batch norms, fixed then, as part of the convolutions."""
        for conv, norm, _ in self._layers():
            assert norm.running_mean is not None
            assert norm.running_var is not None
            assert conv.bias is not None
            gain = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            bias = norm.bias + (conv.bias - norm.running_mean) * gain
            weight = conv.weight * gain[:, None, None, None]
            if few_channels(conv):
                x = activated_linear(*_patches(x, weight, conv), bias, gelu=False).permute(0, 3, 1, 2)
            else:
                x = x.contiguous(memory_format=torch.channels_last)
                x = F.relu(F.conv2d(x, weight, bias, conv.stride, conv.padding))
        return x


def few_channels(conv: nn.Conv2d) -> bool:
    """Whether a 3x3 convolution is faster as one product of its patches: cuDNN has no fast kernel for 3 channels."""
    return conv.in_channels * 9 <= PATCH


def _patches(x: Tensor, weight: Tensor, conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """The inputs of a 3x3 filter, (B, h, w, PATCH), and filters (features, PATCH), both padded with zeros."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))  # rounded before there are nine of each
    (down, across), spare = conv.stride, PATCH - 9 * conv.in_channels
    inputs = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, down).unfold(3, 3, across)  # B C h w 3 3
    return F.pad(inputs.permute(0, 2, 3, 1, 4, 5).flatten(3), (0, spare)), F.pad(weight.flatten(1), (0, spare))


@register_notrace_module
class PatchMerge(nn.Module):
    """Swin's merge: 2x2 neighbors concatenated, layer norm, linear."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_dim)
        self.reduction = nn.Linear(4 * in_dim, dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        # Published order of the four: top left, bottom left, top right, bottom right.
        if any_size(x) and backend.patch_kernel(x):
            x, grid = picked_patches(x, (2, 2), by_column=True)
            return self.reduction(self.norm(x)), grid
        x = pad_to_multiple(x, 2).permute(0, 2, 3, 1)  # B h w C
        batch, height, width, dim = x.shape
        x = x.reshape(batch, height // 2, 2, width // 2, 2, dim).permute(0, 1, 3, 4, 2, 5)
        x = x.reshape(batch, height // 2 * (width // 2), 4 * dim)
        return self.reduction(self.norm(x)), (height // 2, width // 2)
