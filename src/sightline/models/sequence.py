"""Transformer encoders of token sequences: classification, and pairs of sequences through two towers.

The models of the Long Range Arena, at the size that the Nystromformer paper (AAAI 2021) compares mechanisms at: two
blocks of 64 channels, two heads, an MLP of 128, the mean over the tokens.
"""

from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from sightline.layers.attention import Attention
from sightline.layers.blocks import PreNormBlock
from sightline.layers.lookup import TokenTable
from sightline.layers.pattern import Pattern, parse_pattern
from sightline.layers.run_blocks import run_blocks
from sightline.models.base import Arguments, LayerGroups, check_choice
from sightline.models.pyramid import drop_path_rates
from sightline.util.errors import InputError
from sightline.util.names import nearest

PAD = 0  # the id of no token
POOLS = ("avg", "max", "token")
SEQUENCE_HEADS = 2


class SequenceEncoder(nn.Module):
    """Token and position embeddings, blocks of one width, pooling, and a classifier with a hidden layer.

    Args:
        num_tokens: vocabulary size; ids are 1 to num_tokens, and 0 is padding.
        max_length: most tokens of a sequence.
        num_classes: outputs.
        attention: mechanism of every block, or a pattern; see `sightline.layers.pattern`.
        embed_dim, num_heads, depth: width, heads and number of blocks.
        mlp_ratio: hidden width of the MLPs and of the classifier over embed_dim.
        global_pool: "avg" or "max" over the tokens that are not padding, or "token" for a class token.
        towers: 1, or 2 for pairs of sequences that one encoder reads one by one.
        masked: false if no sequence is ever padded, as with images; no mask is made then.
        drop_rate: dropout of embeddings, attention and MLPs.
        drop_path_rate: stochastic depth of the last block.

    Example:
        >>> SequenceEncoder(256, 4096, 2, attention="inline")(torch.randint(1, 257, (8, 1000))).shape
        torch.Size([8, 2])
    """

    def __init__(
        self,
        num_tokens: int,
        max_length: int,
        num_classes: int,
        attention: Pattern = "softmax",
        embed_dim: int = 64,
        num_heads: int = SEQUENCE_HEADS,
        depth: int = 2,
        mlp_ratio: float = 2.0,
        global_pool: str = "avg",
        towers: int = 1,
        masked: bool = True,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        counts = {"num_tokens": num_tokens, "max_length": max_length, "num_classes": num_classes, "depth": depth,
                  "embed_dim": embed_dim, "num_heads": num_heads}  # fmt: skip
        for what, value in counts.items():
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{what}={value!r}: expected a whole number of at least 1")
        if not isinstance(mlp_ratio, int | float) or not int(embed_dim * mlp_ratio) >= 1:
            raise InputError(f"mlp_ratio={mlp_ratio!r}: expected a number above 0, such as 2")
        if towers not in (1, 2):
            raise InputError(f"towers={towers!r}: expected 1, or 2 for pairs of sequences")
        self.num_tokens, self.max_length, self.num_classes = num_tokens, max_length, num_classes
        self.global_pool = check_choice("global_pool", global_pool, POOLS)
        self.towers, self.masked = towers, masked
        self.grad_checkpointing = False
        self.embed = TokenTable(num_tokens + 1, embed_dim)
        self.pos_embed = nn.Parameter(torch.empty(1, max_length, embed_dim))
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if global_pool == "token" else None
        self.drop = nn.Dropout(drop_rate)
        (mechanisms,) = parse_pattern(attention, (depth,))
        (rates,) = drop_path_rates(drop_path_rate, (depth,))
        self.blocks = nn.ModuleList(
            PreNormBlock(
                embed_dim,
                Attention(embed_dim, num_heads, mechanism, length=max_length, proj_drop=drop_rate),
                mlp_ratio,
                eps=1e-5,
                drop=drop_rate,
                drop_path=rate,
            )
            for mechanism, rate in zip(mechanisms, rates, strict=True)
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.num_features = embed_dim * (1 if towers == 1 else 4)
        hidden = int(embed_dim * mlp_ratio)
        self.head = nn.Sequential(nn.Linear(self.num_features, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
        for table in (self.embed.weight, self.pos_embed, self.cls_token):
            if table is not None:
                trunc_normal_(table, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, N), or (B, 2, N) with two towers -> (B, num_classes). N may be anything up to max_length."""
        expected = "(batch, tokens)" if self.towers == 1 else "(batch, 2, tokens)"
        if ids.ndim != self.towers + 1 or (self.towers == 2 and ids.shape[1] != 2):
            raise InputError(f"ids have shape {tuple(ids.shape)}; expected {expected}")
        if self.towers == 1:
            return self.head(self.encode(ids))
        one, other = self.encode(ids.flatten(0, 1)).unflatten(0, (-1, 2)).unbind(1)
        return self.head(torch.cat([one, other, one * other, one - other], -1))

    def encode(self, ids: Tensor) -> Tensor:
        """ids (B, N) -> one vector per sequence (B, C); a sequence without tokens gets one too."""
        if ids.shape[1] == 0:
            ids = nn.functional.pad(ids, (0, 1), value=PAD)
        if ids.shape[1] > self.max_length:
            raise InputError(
                f"{ids.shape[1]} tokens for a model of max_length={self.max_length}; truncate the sequences"
            )
        mask = ids != PAD if self.masked else None
        x = self.embed(ids) + self.pos_embed[:, : ids.shape[1]]
        prefix = 0
        if self.cls_token is not None:
            prefix, x = 1, torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
            mask = None if mask is None else nn.functional.pad(mask, (1, 0), value=True)
        x, _ = run_blocks(
            self.blocks, self.drop(x), (1, ids.shape[1]), prefix, mask, save_memory=self.grad_checkpointing
        )  # fmt: skip
        return self._pool(self.norm(x), mask)

    def _pool(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.global_pool == "token":
            return x[:, 0]
        if mask is None:
            return x.mean(1) if self.global_pool == "avg" else x.amax(1)
        hidden, count = ~mask.unsqueeze(-1), mask.sum(1, keepdim=True)
        if self.global_pool == "avg":
            return x.masked_fill(hidden, 0).sum(1) / count.clamp(min=1)
        return x.masked_fill(hidden, -torch.inf).amax(1).masked_fill(count == 0, 0)

    def get_classifier(self) -> nn.Module:
        return self.head

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trade time for memory in training: keep only the input of each block."""
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay: tables of tokens and positions."""
        return {"embed.weight", "pos_embed", "cls_token"}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> LayerGroups:
        """Layers from the embeddings to the head, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|^pos_embed|^embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }


# The five tasks: vocabulary size, longest sequence (powers of two, as published), classes, and what else differs.
SEQUENCE_MODELS: dict[str, Arguments] = {
    "lra_listops": {"num_tokens": 15, "max_length": 2048, "num_classes": 10},
    "lra_text": {"num_tokens": 256, "max_length": 4096, "num_classes": 2},
    "lra_retrieval": {"num_tokens": 256, "max_length": 4096, "num_classes": 2, "towers": 2},
    "lra_image": {"num_tokens": 256, "max_length": 1024, "num_classes": 10, "masked": False},
    "lra_pathfinder": {"num_tokens": 256, "max_length": 1024, "num_classes": 2, "masked": False},
}


def create_sequence_model(name: str, **kwargs: Any) -> SequenceEncoder:
    """A model of `SEQUENCE_MODELS` by name, with `SequenceEncoder` arguments that replace its own.

    Raises:
        InputError: there is no such model, or an argument does not fit.
    """
    if name not in SEQUENCE_MODELS:
        raise InputError(f"model.name: no sequence model {name!r}; {nearest(name, SEQUENCE_MODELS)}")
    try:
        return SequenceEncoder(**{**SEQUENCE_MODELS[name], **kwargs})
    except TypeError as error:
        raise InputError(f"model.args: {name} does not accept its arguments ({error})") from error
