"""Arguments of a model that a file records: known names with types and limits, and never more than the file holds.

A header can name any model with any arguments. Arguments are read by the table below, which has no argument that is a
class, a function or a path; and while a model is built from them, its parameters are counted against the tensors of the
file, so that 3,000,000 blocks end after the first few.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, create_model
from torch import Tensor, nn
from torch.nn.modules import module as registration

from sightline.models.weights.reader import State
from sightline.models.weights.shapes import MAX_BLOCKS
from sightline.util.errors import FileError, InputError
from sightline.util.files import jsonable
from sightline.util.names import MAX_SIDE
from sightline.util.text import printable

MAX_BUFFERS = 1 << 26  # numbers in buffers, of which a file need not have any
MAX_STAGES = 16

Whole = Annotated[int, Field(strict=True, ge=0, le=MAX_SIDE)]
Classes = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Blocks = Annotated[int, Field(strict=True, ge=0, le=MAX_BLOCKS)]
Number = Annotated[float, Field(strict=True, ge=-1e6, le=1e6, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Word = Annotated[str, Field(pattern="^[a-z0-9_]{0,32}$")]
Mechanism = Annotated[str, Field(max_length=4096)]
Mechanisms = Annotated[list[Mechanism], Field(max_length=MAX_BLOCKS)]
Activation = Literal[
    "relu", "relu6", "leaky_relu", "elu", "prelu", "celu", "selu", "gelu", "gelu_tanh", "quick_gelu", "silu", "swish",
    "mish", "sigmoid", "tanh", "hard_sigmoid", "hard_swish", "hard_mish", "identity",
]  # fmt: skip
Norm = Literal[
    "batchnorm", "batchnorm2d", "frozenbatchnorm2d", "groupnorm", "groupnorm1", "layernorm", "layernorm2d", "rmsnorm",
    "rmsnorm2d", "simplenorm", "simplenorm2d",
]  # fmt: skip


class CardError(FileError):
    """Metadata that does not describe a model; the message is one line."""


def _per_stage(kind: Any) -> Any:
    """One value, one per stage, or none."""
    return kind | Annotated[list[kind], Field(max_length=MAX_STAGES)] | None


NAMES: dict[Any, str] = {
    _per_stage(Blocks): "depth depths conv_depths layers num_blocks transformer_depths",
    _per_stage(Whole): (
        "img_size in_chans patch_size embed_dim embed_dims dim dims channels widths hidden_sizes num_heads "
        "num_kv_heads heads head_dim window_size window_sizes map_window stripes map_stripes sr_ratios kernel_size "
        "kernel_sizes stem_width stem_chs stem_size stem_stride stem_kernel_size patch_stride down_stride cardinality "
        "base_width groups group_size num_features head_hidden_size output_stride reg_tokens growth_rate "
        "num_init_features key_dim state_dim key_dims out_indices num_tokens max_length towers num_reg_tokens "
        "block_reduce_first down_kernel_size bn_size"
    ),
    _per_stage(Number): (
        "mlp_ratio mlp_ratios drop_rate drop_path_rate attn_drop_rate proj_drop_rate pos_drop_rate patch_drop_rate "
        "drop_block_rate init_values ls_init_value layer_scale_init_value layer_scale_init_values layerscale_value "
        "head_init_scale norm_eps expand_ratio expansion_ratio bottle_ratio attn_ratio attn_mlp_ratio width_mult "
        "width_factor depth_mult rope_temperature rope_theta"
    ),
    Flag | None: (
        "qkv_bias qkv_fused proj_bias conv_bias mlp_bias qk_norm class_token no_embed_class pre_norm fc_norm "
        "final_norm dynamic_img_size dynamic_img_pad strict_img_size always_partition fix_init zero_init_last avg_down "
        "preact blur conv_mlp use_grn swiglu_mlp scale_mlp scale_attn_inner use_abs_pos_emb use_rel_pos_bias "
        "use_shared_rel_pos_bias use_rot_pos_emb use_pos_embed use_post_norm patch_norm distilled head_norm_first "
        "replace_stem_pool masked pool_include_prefix attn_only_layer_scale"
    ),
    Word | None: "global_pool stem_type weight_init pos_embed pad_type rope_type",
    Classes: "num_classes",
    Activation | None: "act_layer",
    Norm | None: "norm_layer",
    Mechanism | Annotated[list[Mechanism | Mechanisms], Field(max_length=MAX_BLOCKS)]: "attention",
}  # fmt: skip
FIELDS: dict[str, Any] = {name: (kind, None) for kind, names in NAMES.items() for name in names.split()}
Recorded = create_model("Recorded", __config__=ConfigDict(extra="forbid"), **FIELDS)


def read_arguments(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The entry `model_args` of a file; {} if there is none.

    Raises:
        CardError: names the argument that is unknown, of another type or beyond its limits.
    """
    try:
        return Recorded.model_validate_json(metadata.get("model_args", "{}")).model_dump(exclude_unset=True)
    except ValidationError as error:
        key, why = _first(error)
        raise CardError(f"its card is damaged (model_args{key and f'.{key}'}: {why}); save the weights again") from None


def check_recordable(args: Mapping[str, object]) -> None:
    """Reject arguments that `read_arguments` would not read back.

    Raises:
        InputError: names the argument.
    """
    try:
        Recorded.model_validate(jsonable(dict(args)))
    except ValidationError as error:
        key, why = _first(error)
        raise InputError(f"{key}: {why}; a file of weights cannot record it") from None


def _first(error: ValidationError) -> tuple[str, str]:
    """The argument that does not fit, and why."""
    first = error.errors(include_url=False, include_input=False)[0]
    message = "no such argument" if first["type"] == "extra_forbidden" else first["msg"]
    why = printable(message.replace("Input should be", "expected"), 200)
    return printable(first["loc"][0], 40) if first["loc"] else "", why


@contextmanager
def within(state: State) -> Iterator[None]:
    """Ends with a `FileError` once a model that is built here has more parameters than the weights of a file.

    Some models build a part that they drop again, such as a classifier.
    """
    left = {"parameters": 2 * len(state) + 100, "modules": 20 * len(state) + 2000, "numbers in buffers": MAX_BUFFERS}

    def count(what: str, number: int) -> None:
        left[what] -= number
        if left[what] < 0:
            raise FileError(f"its card describes a model with more {what} than these {len(state)} tensors make up")

    def parameter(module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        count("parameters", value is not None)

    def submodule(module: nn.Module, name: str, value: nn.Module | None) -> None:
        count("modules", 1)

    def buffer(module: nn.Module, name: str, value: Tensor | None) -> None:
        count("numbers in buffers", 0 if value is None else value.numel())

    hooks = [
        registration.register_module_parameter_registration_hook(parameter),
        registration.register_module_module_registration_hook(submodule),
        registration.register_module_buffer_registration_hook(buffer),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
