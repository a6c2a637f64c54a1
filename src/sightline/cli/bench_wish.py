"""What `sightline bench` is asked to measure, from the words of the command line."""

from typing import TYPE_CHECKING

from sightline.cli.models import check_model_args, parse_model_args, parse_size
from sightline.cli.options import UsageError
from sightline.util.names import nearest

if TYPE_CHECKING:
    import torch

    from sightline.bench.networks import Network
    from sightline.bench.select import Wish
    from sightline.cli.bench import Options


def read_wish(options: "Options") -> "Wish":
    """What was asked for; raises `UsageError` for what cannot be."""
    from sightline.bench.cases import MODES, parse_shape
    from sightline.bench.precision import DTYPES
    from sightline.bench.select import COMPILE, MODEL_RIVALS, OP_MODES, OP_RIVALS, Wish

    device = _device(options.device)
    models = options.what == "models"
    usual = "bfloat16" if device.type == "cuda" else "float32"
    if options.compile not in COMPILE:
        raise UsageError(f"--compile: {options.compile!r}; give one of {', '.join(COMPILE)}")
    return Wish(
        device,
        _choices("dtype", options.dtype, tuple(DTYPES)) or (usual,),
        _choices("mode", options.mode, MODES if models else OP_MODES),
        COMPILE[options.compile],
        options.mechanism,
        tuple(parse_shape(text) for text in options.shape),
        _choices("backend", options.backend, ("triton", "torch")),
        tuple(_network(text) for text in options.model),
        tuple(options.attention),
        tuple(_pair(text) for text in _split(options.img_size)),
        _numbers("batch-size", options.batch_size),
        _numbers("window", options.window),
        None if options.rivals is None else _rivals(options.rivals, MODEL_RIVALS if models else OP_RIVALS),
    )


def _device(name: str | None) -> "torch.device":
    import torch

    usable = torch.cuda.is_available()
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if usable else torch.device("cpu")
    if name not in ("cuda", "cpu"):
        raise UsageError(f"--device: {name!r} is no device to measure on; give cuda or cpu")
    if name == "cuda" and not usable:
        raise UsageError("--device: torch sees no CUDA device here; use --device cpu")
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device("cpu")


def _network(text: str) -> "Network":
    """`NAME` or `NAME:key=value:key=value`."""
    import timm

    from sightline.bench.networks import Network
    from sightline.models.zoo import VARIANTS

    name, *parts = text.split(":")
    if not timm.is_model(name):
        known = [*VARIANTS, *timm.list_models()]
        raise UsageError(f"--model: no model {name!r}; {nearest(name, known, '`sightline list` shows ours')}")
    args = parse_model_args(parts)
    if name in VARIANTS:
        check_model_args(name, args)
    return Network(text, name, args)


def _pair(text: str) -> tuple[int, int]:
    size = parse_size(text)
    return (size, size) if isinstance(size, int) else size


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _choices(name: str, text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    for part in _split(text):
        if part not in known:
            raise UsageError(f"--{name}: {part!r}; {nearest(part, known, 'give one of ' + ', '.join(known))}")
    return tuple(dict.fromkeys(_split(text)))


def _rivals(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    return () if text.strip() == "off" else _choices("rivals", text, known)


def _numbers(name: str, text: str | None) -> tuple[int, ...]:
    for part in _split(text):
        if not part.isdigit() or not 0 < int(part) <= 1_000_000:
            raise UsageError(f"--{name}: {part!r} is not a number from 1 to 1000000")
    return tuple(int(part) for part in _split(text))
