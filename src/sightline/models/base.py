"""What all models share: the classifier, positions that follow the input, and loading weights of any origin."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from timm.layers import register_notrace_function, trunc_normal_
from timm.models._features import FeatureGetterNet, feature_take_indices
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import guard_scalar

from sightline.layers.core import Grid
from sightline.layers.patch import to_map
from sightline.layers.position import PositionTable
from sightline.models.casting import cast_weights, castable
from sightline.models.weights.description import update_arguments
from sightline.models.weights.fit import adapt, prepare
from sightline.models.weights.reader import State, unwrap
from sightline.ops.inline.product import mean_token
from sightline.util.errors import InputError

Size = int | tuple[int, int]
Arguments = dict[str, Any]  # keyword arguments of a model, as timm and JSON have them
LoadResult = tuple[list[str], list[str]]  # keys that were missing and unexpected
Tokens = tuple[Tensor, Grid, int]  # (B, prefix + h * w, C), (h, w) and prefix
Feature = Tensor | tuple[Tensor, Tensor]  # a map, with its class token if asked for
LayerGroups = dict[str, str | list[tuple[str, tuple[int, ...] | None]]]  # patterns of timm's group_matcher


def to_pair(size: Size) -> tuple[int, int]:
    """Height and width of an image given as one number or two."""
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise InputError(f"img_size={size}: expected a positive number of pixels, or (height, width)")
    return sides[0], sides[1]


register_notrace_function(mean_token)


@register_notrace_function
def check_images(x: object, channels: int) -> None:
    """Reject what is not a batch of images.

    Raises:
        InputError: not a floating-point tensor (batch, channels, height, width) with pixels in it.
    """
    expected = f"expected a floating-point tensor (batch, {channels}, height, width)"
    if isinstance(x, torch.fx.Proxy):
        raise InputError(
            "images are a proxy of torch.fx; for features use features_only=True, forward_intermediates or timm's "
            "create_feature_extractor"
        )
    if not isinstance(x, Tensor):
        raise InputError(f"images are a {type(x).__name__}; {expected}")
    if x.layout != torch.strided or x.is_nested:
        layout = "nested" if x.is_nested else x.layout
        raise InputError(f"images have layout {layout}; {expected}, which is dense")
    if not x.is_floating_point():
        raise InputError(f"images are {x.dtype}; {expected}, such as images.float() / 255, normalized")
    if x.ndim != 4 or x.shape[1] != channels or x.shape[2] == 0 or x.shape[3] == 0:
        raise InputError(f"images have shape {tuple(x.shape)}; {expected}")


class VisionModel(nn.Module):
    """Base of all families: `forward_features` returns unpooled features, `forward_head` classifies them."""

    family: str
    first_conv: str
    stem_stride: int
    final_stride = 32  # pixels that a token of the last features covers along each side
    num_stages = 4
    body = "stages"  # the list that forward_intermediates counts in
    default_features: int | tuple[int, ...] = (0, 1, 2, 3)  # of features_only: the last n, or these
    norm: nn.Module
    pooled_tokens = 1  # that the classifier takes
    num_prefix_tokens = 0  # leading tokens of the last features that are not on the grid
    pools: tuple[str, ...] = ("avg", "max", "")
    formats: tuple[str, ...] = ("NCHW", "NHWC")  # of forward_intermediates

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
        for what, value, least in (("in_chans", in_chans, 1), ("num_classes", num_classes, 0)):
            if not isinstance(value, int) or value < least:
                raise InputError(f"{what}={value!r}: expected a whole number of at least {least}")
        self.num_classes = num_classes
        self.num_features = num_features
        self.head_hidden_size = num_features * self.pooled_tokens
        self.in_chans = in_chans
        self.img_size = to_pair(img_size)
        self.feature_dim = -1  # forward_features returns channels last
        self.feature_info: list[dict[str, int | str]] = []
        self.grad_checkpointing = False
        self.global_pool = check_choice("global_pool", global_pool, self.pools)
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Linear(self.head_hidden_size, num_classes) if num_classes else nn.Identity()
        self.register_load_state_dict_pre_hook(_adapt_hook)

    def init_weights(self) -> None:
        """Truncated normal linear layers; the rest as torch initializes it."""
        for module in self.modules():
            if isinstance(module, nn.Linear) and not module.weight.is_meta:  # where it would take most of the time
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, in_chans, height, width) of any size -> (batch, num_classes)."""
        with cast_weights(self, x):
            return self.forward_head(self.forward_features(x))

    @torch.compiler.assume_constant_result
    def castable(self) -> tuple[tuple[str, ...], ...]:
        """See `casting.castable`. A compiled model would check every module that is looked at here at every call."""
        return castable(self)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images -> normed features, (B, h, w, C), or (B, prefix + h * w, C) with a class token."""
        check_images(x, self.in_chans)
        # Where torch.compile turns to dynamic shapes, the model's own size gets a graph of its own, and so does every
        # batch of other sizes in training: torch 2.11 cannot compile gradients where both are symbols.
        if torch.compiler.is_dynamo_compiling() and x.shape[-2:] != self.img_size and torch.is_grad_enabled():
            guard_scalar(x.shape[0])
        output, _ = self.run_layers(x, len(getattr(self, self.body)))
        return self._finish(output)

    def run_layers(self, x: Tensor, count: int, take: Collection[int] = ()) -> tuple[Tokens, dict[int, Tokens]]:
        """Run the first `count` stages or blocks on images: the tokens after the last, and after those in `take`."""
        raise NotImplementedError

    def _finish(self, output: Tokens) -> Tensor:
        tokens, grid, _ = output
        x = self.norm(tokens)
        return x if self.num_prefix_tokens else x.reshape(x.shape[0], grid[0], grid[1], x.shape[2])

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        *,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        return_prefix_tokens: bool = False,
    ) -> list[Feature] | tuple[Tensor, list[Feature]]:
        """The features of chosen stages, or blocks of DeiT, preceded by the final ones unless `intermediates_only`.

        Args:
            x: images.
            indices: stages or blocks to take: the last n for a number, all for None.
            norm: apply the final norm, to the last stage's map or to every block.
            stop_early: skip the stages or blocks after the last one taken.
            output_fmt: "NCHW" or "NHWC", and "NLC" of DeiT.
            return_prefix_tokens: return (map, class token) pairs, the token (B, 1, C): zeros for a stage without one,
                in a family whose last stage has one.
        """
        check_images(x, self.in_chans)
        check_choice("output_fmt", output_fmt, self.formats)
        count = len(getattr(self, self.body))
        take, last = feature_take_indices(count, indices)
        final, outputs = self.run_layers(x, last + 1 if stop_early else count, take)
        features: list[Feature] = []
        for i in take:
            tokens, grid, prefix = outputs[i]
            if norm and (self.num_stages == 1 or i == len(self.feature_info) - 1):
                tokens = self.norm(tokens)
            patches = as_features(tokens[:, prefix:], grid, output_fmt)
            # As many for every stage, for decoders that read one from each: a zero adds nothing.
            leading = tokens[:, :prefix] if prefix else torch.zeros_like(tokens[:, : self.num_prefix_tokens])
            features.append((patches, leading) if return_prefix_tokens else patches)
        return features if intermediates_only else (self._finish(final), features)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool, drop and classify; `pre_logits` stops before the classifier."""
        x = self.head_drop(self._pool(x))
        return x if pre_logits else self.head(x)

    def _pool(self, x: Tensor) -> Tensor:
        if self.global_pool == "token":
            return x[:, 0]
        if not self.global_pool:
            return x
        patches = x[:, self.num_prefix_tokens :] if self.num_prefix_tokens else x.flatten(1, -2)
        if self.global_pool == "max":
            return patches.amax(1)
        return mean_token(patches)

    def load_state_dict(
        self, state_dict: Mapping[str, object], strict: bool = True, assign: bool = False
    ) -> LoadResult:
        """Load weights in this layout or a published one, whatever dictionaries and prefixes surround them.

        Weights of the same model with another attention mechanism load too, with a warning that names what is left out
        and what keeps its initial values.

        Raises:
            MismatchError: one line that names what is missing, unexpected or of the wrong shape.
            FileError: the weights are of another family, or of another number of heads.
        """
        return super().load_state_dict(prepare(state_dict, self, strict), strict, assign)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh classifier for `num_classes` (none for 0), on the model's device and in its dtype."""
        if global_pool is not None:
            self.global_pool = check_choice("global_pool", global_pool, self.pools)
        if num_classes < 0:
            raise InputError(f"num_classes={num_classes}: expected 0 for no classifier, or the number of classes")
        like = next(self.parameters())
        self.num_classes = num_classes
        head: nn.Module = nn.Identity()
        if num_classes:
            head = nn.Linear(self.head_hidden_size, num_classes, device=like.device, dtype=like.dtype)
            trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        self.head = head.train(self.training)

    def saves_memory(self) -> bool:
        """Whether blocks are computed again in the backward pass."""
        return self.grad_checkpointing and not torch.jit.is_scripting()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training: keep only the input of each block."""
        self.grad_checkpointing = enable

    def grid_of(self, name: str) -> Grid:
        """The token grid at the module called `name`, for the current img_size."""
        raise NotImplementedError

    def set_input_size(self, img_size: Size | None = None, patch_size: Size | None = None) -> None:
        """Resample the position tables for another image size; `forward` takes other sizes in any case."""
        if patch_size is not None and to_pair(patch_size) != (self.stem_stride, self.stem_stride):
            raise InputError(f"patch_size={patch_size}: it is fixed at {self.stem_stride} by the weights")
        if img_size is not None:
            self.img_size = to_pair(img_size)
            for name, module in self.named_modules():
                if isinstance(module, PositionTable):
                    module.set_grid(self.grid_of(name))
            update_arguments(self, img_size=self.img_size)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay besides biases and norms: tokens and position tables."""
        tables = ("pos_embed", "cls_token", "dist_token", "reg_token", "position_bias")
        return {name for name, _ in self.named_parameters() if any(table in name for table in tables)}

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove what the features at `indices` do not need."""
        layers = getattr(self, self.body)
        take, last = feature_take_indices(len(layers), indices)
        setattr(self, self.body, layers[: last + 1])
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return take


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """`value` if it is one of the choices of the argument `name`."""
    if value not in choices:
        raise InputError(f"{name}={value!r}: expected one of {', '.join(map(repr, choices))}")
    return value


def _adapt_hook(model: VisionModel, state: State, prefix: str, *_: object) -> None:
    """Before `load_state_dict`, also of a module around the model: convert the entries under `prefix` to its layout."""
    own = {k.removeprefix(prefix): state.pop(k) for k in list(state) if k.startswith(prefix)}
    state.update({f"{prefix}{k}": v for k, v in adapt(unwrap(own), model).items()})


def as_features(tokens: Tensor, grid: Grid, output_fmt: str) -> Tensor:
    """(B, h * w, C) -> a map in "NCHW" or "NHWC" order, or the tokens themselves for "NLC"."""
    if output_fmt == "NLC":
        return tokens
    image = to_map(tokens, grid)
    return (image if output_fmt == "NCHW" else image.permute(0, 2, 3, 1)).contiguous()


class FeatureNet(FeatureGetterNet):
    """`features_only=True`: timm's wrapper, which also loads the checkpoint of a whole model."""

    def __init__(self, model: VisionModel, out_indices: int | tuple[int, ...] = 4, **options: Any) -> None:
        if isinstance(out_indices, int):
            out_indices = min(out_indices, len(model.feature_info))
        super().__init__(model, out_indices, **options)

    def load_state_dict(self, state_dict: dict[str, object], strict: bool = True, assign: bool = False) -> LoadResult:
        """Load the weights of these features, or of a whole model."""
        if not any(key.startswith("model.") for key in state_dict):
            state = prepare(state_dict, self.model, strict, self._pruned)
            state_dict = {f"model.{key}": value for key, value in state.items()}
        return super().load_state_dict(state_dict, strict, assign)

    def _pruned(self, key: str) -> bool:
        """Whether a key of the whole model is not needed for these features."""
        part, _, rest = key.partition(".")
        if part in ("stages", "blocks"):
            return int(rest.partition(".")[0]) >= len(getattr(self.model, part))
        return part in ("head", "fc_norm", "attn_pool") or (part == "norm" and isinstance(self.model.norm, nn.Identity))
