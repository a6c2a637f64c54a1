"""Create and list models by name: timm's registry, with ours in it; download published weights."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import timm
from torch import nn

from sightline.layers.pattern import format_pattern, parse_pattern
from sightline.models import zoo
from sightline.models.weights.heads import check_recorded
from sightline.models.weights.identify import arguments
from sightline.models.weights.packaged import LICENCE, packaged
from sightline.models.weights.published import PUBLISHED, Cached
from sightline.models.weights.reader import Weights, read_weights
from sightline.models.weights.recorded import read_arguments
from sightline.models.zoo import VARIANTS
from sightline.util.errors import FileError, InputError, shown
from sightline.util.names import nearest

SHOWN = 12  # arguments in a message
PACKAGED = "in the package"  # where weights are that need no download


def create_model(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Create a model by name: one of our own or any of timm's.

    Args:
        name: as `list_models` shows it; timm's names may have a tag, as in "vit_tiny_patch16_224.augreg_in21k", and
            "hf-hub:owner/repository" and "local-dir:folder" name a model that `timm.models.save_for_hf` wrote.
        pretrained: load the weights in the package, or the published ones, from the cache or the network; see
            `download`.
        kwargs: arguments of the model, such as `img_size`, `num_classes`, `in_chans`, `attention`, `depths`,
            `embed_dims`, `num_heads`, `drop_path_rate`; and timm's `features_only` and `checkpoint_path`. The arguments
            that a checkpoint records, as those of a run do, need not be given again.

    Raises:
        InputError: there is no such model or argument (the message names the nearest), or no weights are published.
        FileError: the weights cannot be downloaded or read, or do not fit.

    Example:
        >>> import sightline, torch
        >>> model = sightline.create_model("inline_swin_tiny", num_classes=10, attention="inline")
        >>> model(torch.zeros(1, 3, 224, 224)).shape
        torch.Size([1, 10])
    """
    if not (isinstance(name, str) and name.startswith(("hf-hub:", "local-dir:"))):
        check_name(name)
    if name in VARIANTS:
        check_arguments(name, {key: value for key, value in kwargs.items() if key not in TIMM_ARGUMENTS})
    # timm reads a checkpoint without its card, and only when the model is there.
    path = kwargs.pop("checkpoint_path", None) if name in VARIANTS else None
    weights = read_weights(path) if path else None
    if weights is not None:
        kwargs = {**_recorded(weights, name), **kwargs}
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **kwargs)
    except TypeError as error:
        raise InputError(f"{name} does not accept its arguments ({error})") from error
    if weights is not None:
        check_recorded(weights, model)
        try:
            model.load_state_dict(weights.state)
        except FileError as error:
            error.args = (f"{weights.path}: {error}",)
            raise
    return model


def _recorded(weights: Weights, name: str) -> dict[str, Any]:
    """The arguments in the card of a file, if it is of this model."""
    if weights.metadata.get("model") != name:
        return {}
    try:
        args = read_arguments(weights.metadata)
        check_arguments(name, args)
    except ValueError as error:
        raise FileError(f"{weights.path}: its card is damaged ({error}); save the weights again") from error
    return {key: tuple(value) if isinstance(value, list) else value for key, value in args.items()}


def download(name: str, to: str | Path | None = None) -> Cached:
    """Download the published weights of a model, or find them in the cache.

    Interrupted downloads resume. The file is read as data only, must have exactly the tensors of the model, and its
    SHA-256 is kept next to it. `create_model(name, pretrained=True)` does the same and builds the model.

    Args:
        name: one of our models.
        to: a folder; by default SIGHTLINE_HOME, or the folder of torch.hub.

    Returns:
        `Cached` with the path, the SHA-256, the licence and whether it was downloaded just now.

    Raises:
        InputError: there is no such model, none of its weights are published, or the folder cannot be written.
        FileError: no connection, or another file than these weights; the line says where to put it by hand.

    Example:
        >>> import sightline
        >>> sightline.download("inline_swin_tiny").path  # doctest: +SKIP
        PosixPath('/home/me/.cache/torch/hub/checkpoints/inline_swin_tiny.pth')
    """
    return zoo.download(variant_name(name), to)


# Arguments that timm and `zoo.create` handle before the model is built.
TIMM_ARGUMENTS = frozenset(
    {"features_only", "out_indices", "feature_cls", "checkpoint_path", "cache_dir", "pretrained_cfg",
     "pretrained_cfg_overlay", "scriptable", "exportable", "no_jit", "device", "dtype"}
)  # fmt: skip


def list_models(pattern: str = "*") -> list[str]:
    """The names of our models that match a pattern; `timm.list_models` has them too, among timm's own.

    Example:
        >>> import sightline
        >>> sightline.list_models("inline_deit*")
        ['inline_deit_tiny', 'inline_deit_small', 'inline_deit_base']
    """
    if not isinstance(pattern, str):
        raise InputError(f"pattern: expected a text such as 'inline_*'; got {shown(pattern)}")
    return [name for name in VARIANTS if fnmatchcase(name, pattern)]


def describe_models() -> list[dict[str, Any]]:
    """Every sightline model: published figures, width, heads and depth per stage, attention, weights; for JSON."""
    rows: list[dict[str, Any]] = []
    for name, variant in VARIANTS.items():
        args = arguments(name)
        rows.append(
            {
                "name": name,
                "family": variant.cls.family,
                "img_size": variant.size,
                "params_m": variant.params,
                "flops_g": variant.flops,
                "top1": variant.top1,
                "embed_dims": args["embed_dims"],
                "num_heads": args["num_heads"],
                "depths": args["depths"],
                "attention": format_pattern(parse_pattern(args["attention"], args["depths"])),
                **_weights(name),
            }
        )
    return rows


def _weights(name: str) -> dict[str, str | None]:
    """Where the weights of a model are, and their license."""
    if packaged(name) is not None:
        return {"weights": PACKAGED, "licence": LICENCE}
    if name in PUBLISHED:
        return {"weights": PUBLISHED[name].url, "licence": PUBLISHED[name].licence}
    return {"weights": None, "licence": None}


def check_name(name: str) -> None:
    """Reject a name that neither our models nor timm's have.

    Raises:
        InputError: names the nearest.
    """
    if not isinstance(name, str):
        raise InputError(f"model: expected a name, as `sightline list` shows them; got {shown(name)}")
    if name not in VARIANTS and not timm.is_model(name.partition(".")[0]):
        remedy = nearest(name, [*VARIANTS, *timm.list_models()], "`sightline list` and timm.list_models() show all")
        raise InputError(f"no model {name!r}; {remedy}")


def pretrained_weights(name: str) -> Path:
    """The file of the weights of a model: in the package, or published, which are downloaded once.

    Raises:
        InputError: there is no such model, or it has no weights.
        FileError: they cannot be downloaded.
    """
    return packaged(variant_name(name)) or download(name).path


def variant_name(name: str) -> str:
    """`name` if it is one of our models.

    Raises:
        InputError: it is not; the message names the nearest.
    """
    if name not in VARIANTS:
        raise InputError(f"no model {name!r}; {nearest(name, VARIANTS, '`sightline list` shows all')}")
    return name


def check_arguments(name: str, args: Mapping[str, object]) -> None:
    """Reject arguments that one of our models does not have.

    Raises:
        InputError: names the argument and the nearest one.
    """
    names = arguments(name)
    for key in args:
        if key not in names:
            first = ", ".join(list(names)[:SHOWN])
            remedy = nearest(key, names, f"it has {first} and {len(names) - SHOWN} more")
            raise InputError(f"{name} has no argument {shown(key)}; {remedy}")
