"""Attention operators: functions on (batch, tokens, heads, head_dim) tensors. One folder per operator."""

from sightline.ops.headwise_conv import headwise_conv
from sightline.ops.inline import inline_attention
from sightline.ops.linear import linear_attention
from sightline.ops.soft import soft_attention
from sightline.ops.softmax import softmax_attention

__all__ = ["headwise_conv", "inline_attention", "linear_attention", "soft_attention", "softmax_attention"]
