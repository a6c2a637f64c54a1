"""Weight files and run folders: `load` opens them, `convert` writes them in sightline's layout."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HFValidationError
from safetensors.torch import save
from torch import Tensor

from sightline.data.labels import imagenet_classes
from sightline.hub.exported import open_exported
from sightline.hub.formats import SUFFIXES as EXPORTED
from sightline.models.base import Arguments
from sightline.models.factory import pretrained_weights
from sightline.models.weights.checkpoint import Checkpoint, Choice, load_model, prefix_errors
from sightline.models.weights.layouts import IGNORED
from sightline.models.weights.packaged import default_weights
from sightline.models.weights.reader import WEIGHTS, Weights, read_weights
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import card_of, make_transform
from sightline.tasks.registry import LABELLED, task_of
from sightline.util.device import choose_device
from sightline.util.errors import FileError, InputError, WeightsWarning
from sightline.util.files import check_path, file_digest, reason, write_atomic
from sightline.util.provenance import VERSION

Shape = tuple[int, ...]
HF_HUB = "hf-hub:"


def load(
    path: str | Path | None = None,
    *,
    model: str | None = None,
    model_args: Arguments | None = None,
    device: str | torch.device = "cpu",
) -> Loaded:
    """Open a trained model: a run folder, one of our own files, an exported file, or a published checkpoint.

    Without a path it is the model that comes with the package, a classifier of ImageNet; with the name of another model
    alone, its published weights, which are downloaded once.

    The header is read once, shapes are checked on the meta device, and the model is built once. A file is read as data
    only; a published checkpoint is identified by the shapes of its tensors.

    Args:
        path: a run folder (its best weights are loaded), a weight file, an .onnx or .pt2 file of `sightline.export` (a
            .pt2 file is a program: open only those that you trust), or "hf-hub:owner/name" for a repository of the
            Hugging Face hub that `sightline.push_to_hf_hub` made.
        model, model_args: the variant and its arguments, if a checkpoint without a card leaves them open, or without a
            path.
        device: where to put the model; "auto" for a GPU if there is one.

    Returns:
        The model in evaluation mode with its card, transform and class names, whatever its task.

    Raises:
        InputError: the path is empty, or there is no such model, argument or device.
        FileError: the file cannot be read, or its weights do not fit the model.

    Example:
        >>> import sightline
        >>> from PIL import Image
        >>> loaded = sightline.load("runs/quick")
        >>> image = loaded.transform(Image.new("RGB", (640, 480)))
        >>> loaded.classes[int(loaded.model(image.unsqueeze(0)).argmax())] in loaded.classes
        True
    """
    if path is None:
        path = default_weights() if model is None else pretrained_weights(model)
    check_path(path, "checkpoint", "a run folder or a file of weights")
    target = choose_device(device, "device") if isinstance(device, str) else device
    if Path(path).suffix in EXPORTED and not Path(path).is_dir():
        if model is not None or model_args:
            raise InputError(f"{path}: an exported file is a whole model; leave model and model_args out")
        return open_exported(Path(path))
    weights = read_weights(_from_hub(str(path)) if str(path).startswith(HF_HUB) else path)
    spec = task_of(weights.metadata)
    with prefix_errors(weights.path):
        if spec is None or model is not None or model_args:
            loaded = _open_public(weights, model, model_args)
        else:
            loaded = spec.open(weights)
    loaded.model.to(target)
    return loaded


def _from_hub(name: str) -> str:
    """The weights of a repository, `hf-hub:owner/name` or `hf-hub:owner/name@revision`, in huggingface_hub's cache."""
    repo, _, revision = name.removeprefix(HF_HUB).partition("@")
    try:
        return hf_hub_download(repo, WEIGHTS, revision=revision or None, library_name="sightline")
    except (OSError, HFValidationError) as error:
        raise FileError(f"{name}: cannot be downloaded ({reason(error)}); check the name and the connection") from error


def _open_public(weights: Weights, name: str | None, args: Arguments | None) -> Loaded:
    """Identify a published checkpoint, or one of our own without a card, and load it as a classifier."""
    choice = load_model(Checkpoint.of(_classifier_weights(weights)), name, args)
    model = choice.model
    if not model.num_classes:
        raise FileError("these weights have no classifier; give a checkpoint that has one")
    if choice.guessed_heads:
        warnings.warn(
            f"{weights.path}: nothing shows the number of heads; taken as {choice.guessed_heads}. If they were trained "
            f"with another number, pass it as num_heads in model_args",
            WeightsWarning,
            stacklevel=3,
        )
    identity, known = choice.identity, imagenet_classes()
    classes = known if model.num_classes == len(known) else ()
    card = ModelCard.from_metadata(weights.metadata) or card_of(
        identity.name, identity.kwargs, model, classes, model.in_chans, model.img_size
    )
    return Loaded(model.eval(), card, make_transform(card), card.classes, weights.path, LABELLED.name)


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    Args:
        target: the file that was written.
        file: the checkpoint that was read.
        choice: the model that it was fitted to, and what had to be guessed.
        renamed: keys of the file that have another name in sightline.
        resampled: tables whose shape changed, with both shapes.
        dropped: keys of the file that were left out.
        missing: keys of the model that the file does not have; they keep their initial values.
        unexpected: keys of the file that the model does not have, besides `dropped`.
        tensors, parameters: of the model.
    """

    target: Path
    file: Checkpoint
    choice: Choice
    renamed: tuple[str, ...]
    resampled: Mapping[str, tuple[Shape, Shape]]
    dropped: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    tensors: int
    parameters: int

    @property
    def guesses(self) -> list[str]:
        """What the weights do not show about the model, one sentence each, with the option that settles it."""
        choice, found = self.choice, []
        if choice.alike:
            flags = " or pass ".join(other.flags for other in choice.alike)
            found.append(f"another model has the same shapes and cannot be told from it; for that one pass {flags}")
        if choice.guessed_heads:
            found.append(
                f"softmax does not show its heads; taken as {choice.guessed_heads}; "
                "if not, pass num_heads in model_args"
            )
        if choice.guessed_attention:
            found.append(
                "mechanisms without tensors of their own (linear, hydra, ...) have the shapes of softmax, and options "
                f"do not show; taken as {choice.guessed_attention}; if not, pass attention in model_args"
            )
        return found


def convert(
    source: str | Path,
    target: str | Path | None = None,
    *,
    model: str | None = None,
    model_args: Arguments | None = None,
    force: bool = False,
) -> Conversion:
    """Convert a checkpoint, published or our own, to safetensors in sightline's layout.

    The variant is found from the names and shapes of the tensors. Position and bias tables are resampled if the size
    differs. The file is read as data only.

    Args:
        source: a .pth, .pt or .safetensors file.
        target: the file to write; by default the source with the suffix .safetensors.
        model: fit the weights to this variant instead of the one that is found.
        model_args: arguments of the model, such as `img_size` and `num_classes`.
        force: replace an existing file.

    Raises:
        InputError: the target, the model or its arguments cannot be used.
        FileError: the source cannot be read or does not fit; a `MismatchError` has every key.

    Example:
        >>> import sightline
        >>> done = sightline.convert("public.pth", "out.safetensors")
        >>> done.missing, done.unexpected
        ((), ())
        >>> loaded = sightline.load("out.safetensors")
    """
    check_path(source, "source", "a file of weights")
    out = _check_target(Path(source).with_suffix(".safetensors") if target is None else Path(target), force)
    weights = read_weights(source)
    with prefix_errors(weights.path):
        file = Checkpoint.of(_classifier_weights(weights))
        choice = load_model(file, model, model_args)
    identity = choice.identity
    metadata = {"sightline": VERSION, "model": identity.name, "model_args": json.dumps(identity.kwargs)}
    write_tensors(out, choice.model.state_dict(), {"format": "pt", **metadata})
    return _describe(file, choice, out)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors as safetensors, and read the file back; those that share memory are written separately.

    Raises:
        OSError: no space or no permission; the file before is intact.
    """
    plain: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for key, value in tensors.items():
        tensor = value.detach().to("cpu").contiguous()
        address = tensor.untyped_storage().data_ptr()
        plain[key] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    data = save(plain, metadata)

    def write(temporary: Path) -> None:
        temporary.write_bytes(data)
        if file_digest(temporary) != sha256(data).hexdigest():
            raise OSError(f"{path.name} is not read back as it was written")

    write_atomic(path, write)


def _classifier_weights(weights: Weights) -> Weights:
    """Reject weights of another task."""
    spec = task_of(weights.metadata)
    if spec is not None and spec is not LABELLED:
        raise FileError(f"a model for {spec.name}, not a classifier; `sightline eval` takes it")
    return weights


def _check_target(out: Path, force: bool) -> Path:
    if out.suffix != ".safetensors":
        raise InputError(f"{out}: only safetensors are written; name the file {out.stem or 'out'}.safetensors")
    if not out.parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.parent}; make it first")
    if out.is_dir():
        raise InputError(f"{out}: this is a folder; give the name of a file")
    if out.exists() and not force:
        raise InputError(f"{out}: exists already; choose another name, or pass --force (force=True) to replace it")
    return out


def _describe(file: Checkpoint, choice: Choice, out: Path) -> Conversion:
    own = {key: tuple(value.shape) for key, value in choice.model.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in file.shapes.items()}
    ignored = [key for key in file.weights.state if not file.native and IGNORED.search(key)]
    head = [key for key, shape in given.items() if key.startswith("head.") and own.get(key) != shape]
    renamed = [key for key in file.weights.state if key not in own and key not in ignored + head]
    return Conversion(
        target=out,
        file=file,
        choice=choice,
        renamed=tuple(renamed),
        resampled={
            key: (shape, own[key])
            for key, shape in given.items()
            if key in own and key not in head and shape != own[key]
        },
        dropped=tuple(ignored + head),
        missing=tuple(key for key in own if key not in given or key in head),
        unexpected=tuple(key for key in given if key not in own and key not in head),
        tensors=len(own),
        parameters=sum(p.numel() for p in choice.model.parameters()),
    )
