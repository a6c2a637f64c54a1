"""What all models share: the classifier, positions that follow the input, and reading checkpoints of any origin."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from timm.layers import trunc_normal_
from timm.models._features import FeatureGetterNet
from torch import Tensor, nn

from sightline.layers.core import Grid
from sightline.layers.position import PositionTable
from sightline.models import checkpoint

Size = int | tuple[int, int]


def to_pair(size: Size) -> tuple[int, int]:
    """Height and width of an image given as one number or two."""
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    if min(height, width) < 1:
        raise ValueError(f"img_size={size}: give a positive height and width")
    return height, width


class VisionModel(nn.Module):
    """Base of all families: `forward_features` gives unpooled features, `forward_head` classifies them."""

    family: str
    first_conv: str
    stem_stride: int
    num_prefix_tokens = 0  # leading tokens of the last features that are not places of the grid
    pools: tuple[str, ...] = ("avg", "max", "")

    def __init__(
        self,
        num_classes: int,
        num_features: int,
        in_chans: int,
        img_size: Size,
        global_pool: str,
        drop_rate: float,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = num_features
        self.in_chans = in_chans
        self.img_size = to_pair(img_size)
        self.feature_dim = -1  # channels come last in what forward_features gives
        self.feature_info: list[dict[str, Any]] = []
        self.grad_checkpointing = False
        self._check_pool(global_pool)
        self.global_pool = global_pool
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Linear(num_features, num_classes) if num_classes else nn.Identity()
        self.register_load_state_dict_pre_hook(checkpoint.adapt_hook)

    def init_weights(self) -> None:
        """Truncated normal linear layers; the rest as torch starts it."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, in_chans, height, width) of any size -> (batch, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool, drop and classify; `pre_logits` stops before the classifier."""
        x = self.head_drop(self._pool(x))
        return x if pre_logits else self.head(x)

    def _pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "token":
            return x[:, 0]
        if not self.global_pool:
            return x
        places = x[:, self.num_prefix_tokens :] if self.num_prefix_tokens else x.flatten(1, -2)
        return places.mean(1) if self.global_pool == "avg" else places.amax(1)

    def _check_pool(self, pool: str) -> None:
        if pool not in self.pools:
            raise ValueError(f"global_pool={pool!r}: this family has {', '.join(repr(p) for p in self.pools)}")

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh classifier for `num_classes` (none for 0), on the model's device and in its dtype."""
        if global_pool is not None:
            self._check_pool(global_pool)
            self.global_pool = global_pool
        like = next(self.parameters())
        self.num_classes = num_classes
        head: nn.Module = nn.Identity()
        if num_classes:
            head = nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        self.head = head.train(self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training: keep only the input of each block."""
        self.grad_checkpointing = enable

    def position_tables(self) -> Iterator[tuple[str, PositionTable, Grid]]:
        """Every position table with its name and the grid that the present img_size gives it."""
        for name, module in self.named_modules():
            if isinstance(module, PositionTable):
                yield name, module, self.grid_of(name)

    def grid_of(self, name: str) -> Grid:
        """The grid of tokens where the module called `name` stands, for the present img_size."""
        raise NotImplementedError

    def set_input_size(self, img_size: Size | None = None, patch_size: Size | None = None) -> None:
        """Resample the position tables for another image size. Other sizes can be given to `forward` in any case."""
        if patch_size is not None and to_pair(patch_size) != (self.stem_stride, self.stem_stride):
            raise ValueError(f"patch_size={patch_size}: it is fixed at {self.stem_stride} by the weights")
        if img_size is not None:
            self.img_size = to_pair(img_size)
            for _, table, grid in self.position_tables():
                table.set_grid(grid)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Parameters besides biases and norms that an optimizer must not decay: tokens and position tables."""
        return {
            n for n, _ in self.named_parameters() if any(w in n for w in ("pos_embed", "cls_token", "position_bias"))
        }

    def _check_output_fmt(self, output_fmt: str, formats: tuple[str, ...]) -> None:
        if output_fmt not in formats:
            raise ValueError(f"output_fmt={output_fmt!r}: use {' or '.join(formats)}")


class FeatureNet(FeatureGetterNet):
    """`features_only=True`: like timm's wrapper, and it reads the checkpoint of a whole model too."""

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if not any(key.startswith("model.") for key in state_dict):
            state = checkpoint.adapt(dict(state_dict), self.model)
            kept = self.model.state_dict().keys()  # the head and pruned stages are gone
            state_dict = {f"model.{key}": value for key, value in state.items() if key in kept}
        return super().load_state_dict(state_dict, strict, assign)


OutputFormat = Literal["NCHW", "NHWC", "NLC"]
