"""Transformer blocks: attention and MLP with residual connections, norms before or after."""

from collections.abc import Callable
from functools import partial
from typing import Any

from timm.layers import DropPath, LayerScale, Mlp, register_notrace_function
from torch import Tensor, nn

from sightline.layers.attention import Attention
from sightline.layers.core import Grid, changed
from sightline.layers.drop_path import SharedDropPath
from sightline.layers.drop_path import drop_path as make_drop_path
from sightline.ops.activated import activated_linear

register_notrace_function(activated_linear)  # it branches on the dtype of its tensors


class NormedBlock(nn.Module):
    """What `run_blocks` asks the blocks below. They have `attn` and `mlp`, each with a norm, `norm1` and `norm2`."""

    attn: nn.Module
    mlp: nn.Module
    norm1: nn.Module
    norm2: nn.Module
    inherits_forward: bool  # that of the block below, in its subclasses
    inherits_feed_forward: bool

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Known before a model is traced: `type(self).forward` in traced code has every block checked at every call.
        original: type[nn.Module] = next(base for base in cls.__mro__ if NormedBlock in base.__bases__)
        cls.inherits_forward = cls.forward is original.forward
        cls.inherits_feed_forward = getattr(cls, "feed_forward", None) is getattr(original, "feed_forward", None)

    def separable(self) -> bool:
        """Whether `run_blocks` may run the steps itself: plain layer norms with a bias, and no hook, replaced `forward`
        or compiled call on the block or its norms."""
        if not self.inherits_forward or changed(self):
            return False
        norms = (self.norm1, self.norm2)
        return all(type(norm) is nn.LayerNorm and norm.bias is not None and not changed(norm) for norm in norms)

    def ends_in_bias(self, branch: str) -> bool:
        """Whether what "attn" or "mlp" adds to the tokens ends in the bias of a linear layer."""
        layer, drop, after = ENDS[branch]
        if branch == "mlp" and not self.inherits_feed_forward:
            return False
        module = getattr(self, branch)
        last, dropout = getattr(module, layer, None), getattr(module, drop, None)
        if type(last) is not nn.Linear or last.bias is None or type(dropout) is not nn.Dropout or dropout.p:
            return False
        idle = [getattr(self, name) for name in after if hasattr(self, name)]
        same = all(type(each) is nn.Identity for each in idle)
        return same and not any(changed(each) for each in (module, last, dropout, *idle))

    def bias_before_gelu(self) -> Tensor | None:
        """That of an MLP which begins with a linear layer and GELU, without hooks; None for others."""
        mlp: Any = self.mlp
        if not self.inherits_feed_forward or not isinstance(mlp, GeluMlp) or not mlp.plain or changed(mlp):
            return None
        if type(mlp.fc1) is not nn.Linear or type(mlp.act) is not nn.GELU:
            return None
        return None if changed(mlp.fc1) or changed(mlp.act) else mlp.fc1.bias


# The last layer of a branch of a block, its dropout, and what the block does to its result.
ENDS = {"attn": ("proj", "proj_drop", ("ls1", "drop_path1")), "mlp": ("fc2", "drop2", ("ls2", "drop_path2"))}


class PreNormBlock(NormedBlock):
    """x + attn(norm(x)), then x + mlp(norm(x)). Where one operator covers several of these steps,
    `run_blocks` calls it instead.

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

    mlp_takes_grid = False  # whether the MLP is called with the grid of the tokens

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
        self.mlp = mlp or GeluMlp(dim, int(dim * mlp_ratio), drop=drop)
        self.ls2 = LayerScale(dim, init_values) if init_values else nn.Identity()
        self.drop_path2 = make_drop_path(drop_path)
        self.raw_context = raw_context

    def forward(self, x: Tensor, grid: Grid, prefix: int = 0, key_mask: Tensor | None = None) -> Tensor:
        context = x if self.raw_context else None
        mask = {} if key_mask is None else {"key_mask": key_mask}  # attention in windows takes none
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), grid, prefix, context=context, **mask)))
        return x + self.mlp_update(x, grid)

    def mlp_update(self, x: Tensor, grid: Grid) -> Tensor:
        """What the second half of the block adds to the tokens."""
        update: Tensor = self.drop_path2(self.ls2(self.feed_forward(self.norm2(x), grid)))
        return update

    def feed_forward(self, x: Tensor, grid: Grid) -> Tensor:
        """The MLP of normed tokens."""
        return self.mlp(x, grid) if self.mlp_takes_grid else self.mlp(x)

    def attention_added(self, x: Tensor, update: Tensor | None, grid: Grid, prefix: int) -> Tensor | None:
        """The tokens x + `update` after this block's attention and its sum; None if no operator does this."""
        if not self.joins_attention() or self.drop_path1.training:
            return None
        attn, norm = self.attn, self.norm1
        assert isinstance(attn, Attention)
        assert isinstance(norm, nn.LayerNorm)
        return attn.added(x, update, norm, grid, prefix)

    def joins_attention(self) -> bool:
        """Whether norm, attention and residual sum can run as one operator in inference."""
        attn, between = self.attn, (self.ls1, self.drop_path1)
        if type(attn) is not Attention or self.raw_context or not attn.joins():
            return False
        idle = all(type(each) in (nn.Identity, DropPath, SharedDropPath) and not changed(each) for each in between)
        return idle and self.separable()


class GeluMlp(Mlp):
    """timm's MLP. If its activation is torch's GELU, compiled training computes the gradients of that and of the bias
    before it in one pass.

    A subclass whose own `forward` begins in the same way says so: `class Name(GeluMlp, plain=True)`. This is an
    attribute since torch.compile would check every block at every call if traced code compared classes of MLPs.
    """

    plain = True

    def __init_subclass__(cls, plain: bool = False) -> None:
        super().__init_subclass__()
        cls.plain = plain or (cls.plain and "forward" not in vars(cls))


class TanhMlp(GeluMlp, plain=True):
    """With the tanh GELU, which a GPU applies within the first product in inference."""

    def forward(self, x: Tensor) -> Tensor:
        if type(self.fc1) is not nn.Linear or changed(self.fc1) or changed(self.act):  # an adapter or a hook
            return super().forward(x)
        return self.drop2(self.fc2(self.drop1(activated_linear(x, self.fc1.weight, self.fc1.bias, gelu=True))))


class PostNormBlock(NormedBlock):
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
