"""Transformer blocks: attention and MLP with residual connections, norms before or after."""

from collections.abc import Callable
from functools import partial

from timm.layers import LayerScale, Mlp, register_notrace_function
from torch import Tensor, nn

from sightline.layers.core import Grid, hooked
from sightline.layers.drop_path import drop_path as make_drop_path
from sightline.ops.activated import activated_linear

register_notrace_function(activated_linear)  # it branches on the dtype of its tensors


class PreNormBlock(nn.Module):
    """x + attn(norm(x)), then x + mlp(norm(x)). In compiled training, `run_blocks` takes the same steps one by one.

    Args:
        dim: channels.
        attn: a module called as attn(tokens, grid, prefix, context=...). If it has layers `proj` and `proj_drop`, these
            are its last, as `fc2` and `drop2` are those of the MLP.
        mlp_ratio: hidden width of the MLP over dim.
        eps: of the layer norms.
        drop: dropout in the MLP.
        drop_path: stochastic depth of both branches.
        raw_context: data-dependent weights of the attention are made from the block's input before the norm.
        norm: makes the norm of `dim` channels, instead of a layer norm.
        mlp: instead of one of `mlp_ratio` with GELU.
        init_values: of layer scale on both branches; none by default.
    """

    def __init__(
        self,
        dim: int,
        attn: nn.Module,
        mlp_ratio: float = 4.0,
        eps: float = 1e-6,
        drop: float = 0.0,
        drop_path: float = 0.0,
        raw_context: bool = False,
        norm: Callable[[int], nn.Module] | None = None,
        mlp: nn.Module | None = None,
        init_values: float | None = None,
    ) -> None:
        super().__init__()
        norm = norm or partial(nn.LayerNorm, eps=eps)
        self.norm1 = norm(dim)
        self.attn = attn
        self.ls1 = LayerScale(dim, init_values) if init_values else nn.Identity()
        self.drop_path1 = make_drop_path(drop_path)
        self.norm2 = norm(dim)
        self.mlp = mlp or Mlp(dim, int(dim * mlp_ratio), drop=drop)
        self.ls2 = LayerScale(dim, init_values) if init_values else nn.Identity()
        self.drop_path2 = make_drop_path(drop_path)
        self.raw_context = raw_context

    def forward(self, x: Tensor, grid: Grid, prefix: int = 0, key_mask: Tensor | None = None) -> Tensor:
        context = x if self.raw_context else None
        mask = {} if key_mask is None else {"key_mask": key_mask}  # attention in windows takes none
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), grid, prefix, context=context, **mask)))
        return x + self.drop_path2(self.ls2(self.feed_forward(self.norm2(x), grid)))

    def feed_forward(self, x: Tensor, grid: Grid) -> Tensor:
        """The MLP of normed tokens."""
        return self.mlp(x)


class TanhMlp(Mlp):
    """timm's MLP with the tanh GELU, which a GPU applies within the first product in inference."""

    def forward(self, x: Tensor) -> Tensor:
        if type(self.fc1) is not nn.Linear or hooked(self.fc1) or hooked(self.act):  # an adapter or a hook
            return super().forward(x)
        return self.drop2(self.fc2(self.drop1(activated_linear(x, self.fc1.weight, self.fc1.bias, gelu=True))))


class PostNormBlock(nn.Module):
    """norm(x + attn(x)), then norm(x + mlp(x)), with the tanh GELU: the blocks of SOFT."""

    def __init__(
        self, dim: int, attn: nn.Module, mlp_ratio: float = 4.0, drop: float = 0.0, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.attn = attn
        self.drop_path1 = make_drop_path(drop_path)
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = TanhMlp(dim, int(dim * mlp_ratio), act_layer=partial(nn.GELU, approximate="tanh"), drop=drop)
        self.drop_path2 = make_drop_path(drop_path)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor, grid: Grid, prefix: int = 0) -> Tensor:
        x = self.norm1(x + self.drop_path1(self.attn(x, grid, prefix)))
        return self.norm2(x + self.drop_path2(self.mlp(x)))
